env | sort; export A='x y'; bash -c 'echo "$A"'; A=2 bash -c 'echo $A'; unset A; echo "${A-unset}"
