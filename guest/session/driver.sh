# Runs the steps of a session in one shell. A step is a function's body, which Ctrl-C
# returns from.
unitask_step() {
	trap 'trap - INT; return 130' INT
	eval "$unitask_code"
}
while IFS= read -r -d '' -u 3 unitask_code && IFS= read -r -d '' -u 3 unitask_code; do
	unitask_step 3>&- </dev/null
	printf '%d\0\0' $? >&3
	trap : INT
done
