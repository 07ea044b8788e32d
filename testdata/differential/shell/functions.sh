f() { local a=$1; if ((a > 0)); then f $((a - 1)); fi; echo -n "$a "; return 3; }; f 3; echo $?; declare -f f | head -2; g() (exit 4); g; echo $?; unset -f f; type g | head -1; f
