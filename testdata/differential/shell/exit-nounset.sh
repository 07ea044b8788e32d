set -u
echo "${x:-default}"
echo "$x"
echo never
