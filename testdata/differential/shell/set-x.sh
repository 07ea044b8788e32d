set -x; x=1; echo "a b" $x; [[ $x == 1 ]]; f() { local y=2; }; f; set +x; PS4='+$LINENO '; set -x; :; set -v; echo v
