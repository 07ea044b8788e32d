trap 'echo trapped $?; exit 9' EXIT
echo x; exit 3
