f() { local x=1; g; }; g() { echo "${FUNCNAME[@]}" "${BASH_LINENO[@]}"; caller 0 | sed 's/\/.*//'; return 7; }; f; echo $?
