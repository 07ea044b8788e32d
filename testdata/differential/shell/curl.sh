curl -s http://127.0.0.1:1/; echo $?; echo hello > f; curl -s "file://$PWD/f"; curl -s "file://$PWD/none"; echo $?; curl --no-such 2>/dev/null; echo $?
