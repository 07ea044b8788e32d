echo "$# [$1] [$2] [$3] [$4] [$5]"; printf '<%s>' "$@"; echo; shift 2; echo "$*"; IFS=-; echo "$*"
