# The throw-away program does what nearly every script does. Before the user's program comes, that code
# is then in memory, and the emulator has translated it. All its child processes end before it.
set -euo pipefail
PATH=/usr/local/bin:/usr/bin:/bin
name=${1:-rehearsal}
count() { local i; for ((i = 0; i < $1; i++)); do printf '%s ' "$i"; done; echo; }
echo "$name" "$(count 3)" "${name^^}" "${#name}" "$((6 * 7))"
echo "$name" >&2
[[ $name =~ ^re(.*)$ ]] && echo "${BASH_REMATCH[1]}"
case $name in re*) list=(a "b c"); echo "${list[@]}" ;; esac
printf 'b\na\n' | sort | grep -v x | sed 's/a/A/' | tr a-z A-Z | head -2
ls / | wc -l
while read -r line; do :; done < "$0"
cat <<END
$(date +%s | cut -c1) $(basename "$0")
END
trap 'exit 0' EXIT
