set -e
trap 'echo "line $LINENO status $?" >&2' ERR
f() { false; echo never; }
echo before; f; echo never
