# Checks the syntax of a script, and runs none of it.
exec bash -n -- "$1"
