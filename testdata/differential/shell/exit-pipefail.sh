set -o pipefail; false | true; echo $? "${PIPESTATUS[@]}"; true | (exit 3) | cat; echo "${PIPESTATUS[*]}"
exit $((2+3))
