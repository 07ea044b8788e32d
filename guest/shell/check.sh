# Checks the syntax of a script, and runs nothing of it.
exec bash -n -- "$1"
