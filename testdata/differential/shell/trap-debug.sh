trap 'echo "+ $BASH_COMMAND"' DEBUG; x=1; echo $x; trap - DEBUG; trap 'echo return' RETURN; f() { :; }; set -T; f
