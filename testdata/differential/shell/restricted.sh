kill -0 $$; echo $?; kill 99999999 2>/dev/null; echo $?; set -o noclobber; echo a > f; echo b > f; cat f; set -r; cd /; echo $?
