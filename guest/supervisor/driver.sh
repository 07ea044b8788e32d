if [[ -v unitask_line ]]; then if [[ $unitask_last == 0 ]]; then \builtin eval "$unitask_code"; else unitask_with "$unitask_last" || \builtin eval "$unitask_code"; fi; \builtin return; fi
# Runs the steps of a session in one shell, at its top level as in a terminal. A step begins with the
# exit code and the arguments of the previous step. Bash has this file as BASH_ENV. Bash reads its
# commands from a pipe that contains the same line again for each step. The line sources this file,
# whose first line is the step: so a step may return, and has its own line numbers. The driver calls
# no functions named printf, read or exit, which a step or the environment may define.
builtin unset BASH_ENV
builtin shopt -s expand_aliases execfail
unitask_line='{ unitask_turn; } 2>/dev/null; \builtin . "$unitask_driver" 3>&- </dev/null; { unitask_last=$? unitask_busy=; } 2>/dev/null'
unitask_driver=$BASH_SOURCE unitask_head= unitask_code= unitask_last=0 unitask_busy= unitask_flags=m

# With 2>/dev/null at its end, a step's set -x does not print the driver's own commands.
unitask_turn() {
	builtin printf '%s\n' "$unitask_line" >&0
	[[ $unitask_flags == *m* ]] || builtin set +m
	unitask_flags=m
	builtin trap unitask_interrupt INT
	[[ -z $unitask_head ]] || builtin printf '%d\0\0' "$unitask_last" >&3
	while IFS= builtin read -r -d '' -u 3 unitask_head && IFS= builtin read -r -d '' -u 3 unitask_code; do
		if [[ $unitask_head != fork ]]; then
			unitask_busy=1
			builtin return
		fi
		# Reseed RANDOM, unless the code has unset it and so removed its special meaning.
		[[ ! -v RANDOM || ${RANDOM@a} != *i* || ${RANDOM@a} == *r* ]] || RANDOM=$((16#${unitask_code:0:8}))
		builtin printf '0\0\0' >&3
	done
	builtin exit 0
}

# Ctrl-C drops the rest of a step, whatever it is doing, and does nothing when the step has ended.
# Bash continues to read commands after the dropped part under three conditions. Job control is on,
# SIGINT has a trap, and SIGINT ends a foreground process.
unitask_interrupt() {
	[[ -n $unitask_busy ]] || builtin return 0
	unitask_busy= unitask_last=130 unitask_flags=$-
	builtin set -m
	(builtin kill -INT "$BASHPID"; builtin :)
	builtin exit 130
}

unitask_with() { builtin return "$1"; }
exec 0<<<"$unitask_line"
exec 0<>/proc/self/fd/0
