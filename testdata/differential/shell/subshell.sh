x=1; (x=2; echo $x); echo $x; y=$(echo "a  b"; exit 3); echo "$? $y"; { echo grouped; } | cat; diff <(echo 1) <(echo 2); tee >(cat >&2) <<< both >/dev/null; sleep 0.2
