[ "$PWD" = "$(dirname "$0")" ] && echo same; pwd | sed 's/[^/]*$//'; ls; cd / && pwd; cd - >/dev/null; echo "${OLDPWD}"
