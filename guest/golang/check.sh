# Checks the syntax of a program, and runs none of it. gofmt's output is dropped.
exec /usr/local/go/bin/gofmt -e "$1" > /dev/null
