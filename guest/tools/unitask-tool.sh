#!/bin/sh
# Calls a tool of the host: unitask-tool SERVER.TOOL [ARGUMENTS], with the arguments as a JSON object.
# unitask-tool search [TEXT] lists tools, and unitask-tool describe SERVER.TOOL describes one.
if [ -z "$BASH_VERSION" ]; then # sh can't connect; an image has at least one of these
	lib=/unitask/tools
	command -v bash >/dev/null && exec bash $lib/unitask-tool "$@"
	command -v python3 >/dev/null && exec python3 $lib/command.py "$@"
	command -v node >/dev/null && exec node $lib/command.mjs "$@"
	echo 'unitask-tool: this image has none of bash, python3 and node' >&2
	exit 1
fi
LC_ALL=C
host=10.0.2.3
name=$1 body=${2:-}
encode() {
	local text=$1 out='' i c
	for ((i = 0; i < ${#text}; i++)); do
		c=${text:i:1}
		case $c in
		[A-Za-z0-9._-]) out+=$c ;;
		*) printf -v c '%%%02X' "'$c" && out+=$c ;;
		esac
	done
	printf %s "$out"
}
case $name in
search) method=GET path="/search?q=$(encode "$body")" body='' ;;
describe) method=GET path="/describe?name=$(encode "$body")" body='' ;;
?*.?*) method=POST path="/call/$(encode "${name%%.*}")/$(encode "${name#*.}")" body=${body:-'{}'} ;;
*)
	echo 'usage: unitask-tool SERVER.TOOL [JSON] | search [TEXT] | describe SERVER.TOOL' >&2
	exit 2
	;;
esac
if ! exec 3<>"/dev/tcp/$host/80"; then
	echo 'unitask-tool: this machine has no tools: --tools NAME asks for them' >&2
	exit 1
fi
printf '%s %s HTTP/1.0\r\nAccept: text/plain\r\nContent-Length: %d\r\n\r\n%s' "$method" "$path" "${#body}" "$body" >&3
status=102
while [ "$status" = 102 ]; do # comes every two seconds while the connection lasts
	status=
	read -r -t 20 -u 3 _ status _
	while read -r -t 20 -u 3 line && [ "${line%$'\r'}" ]; do :; done
done
case $status in
200) cat <&3 && echo ;;
'')
	echo 'unitask-tool: the call was cut off: the session was paused or forked, or the host ended it' >&2
	exit 1
	;;
*)
	{ printf 'unitask-tool: ' && cat <&3 && echo; } >&2
	exit 1
	;;
esac
