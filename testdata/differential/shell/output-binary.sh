printf '\x00\xff\xfe\n'; head -c 1000 /dev/zero; printf '\200' >&2
