echo $((1 / 0)); echo $?
echo $((08)); echo after
