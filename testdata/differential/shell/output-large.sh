seq 30000; head -c 300000 /dev/zero | tr '\0' x; echo; printf 'err%.0s' {1..5000} >&2
