{ bash -c 'kill -SEGV $$'; echo $?; } 2>&1 | sed "s/ *[0-9]* Seg/ PID Seg/"; (kill -TERM $BASHPID); echo $?
