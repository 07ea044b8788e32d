sleep 1 & p=$!; jobs | sed 's/[0-9]\{3,\}/PID/'; wait $p; echo "waited $?"; (exit 5) & wait $!; echo $?; sleep 60 & kill $!; wait $! 2>/dev/null; echo $?; wait; disown -a; echo done
