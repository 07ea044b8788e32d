# Runs the steps of a session in one shell. A step is a function's body, which Ctrl-C
# returns from.
unitask_step() {
	trap 'trap - INT; return 130' INT
	eval "$unitask_code"
}
while IFS= read -r -d '' -u 3 unitask_head && IFS= read -r -d '' -u 3 unitask_code; do
	if [[ $unitask_head == fork ]]; then # RANDOM has its meaning unless it was unset
		[[ ! -v RANDOM || ${RANDOM@a} != *i* || ${RANDOM@a} == *r* ]] || RANDOM=$((16#${unitask_code:0:8}))
		printf '0\0\0' >&3
		continue
	fi
	unitask_step 3>&- </dev/null
	printf '%d\0\0' $? >&3
	trap : INT
done
