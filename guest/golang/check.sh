# Checks the syntax of a program, and runs nothing of it. What gofmt would write is not asked for.
exec /usr/local/go/bin/gofmt -e "$1" > /dev/null
