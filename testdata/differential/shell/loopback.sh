exec 3<>/dev/tcp/127.0.0.1/1; echo $?; mkfifo p; (echo through > p) & cat p; wait; id -un > /dev/null; echo $?; [ -n "$HOSTNAME" ]; echo $?; test -e /dev/null && test -w /dev/null; echo $?
