head -1; bash -c 'read x; echo "child $x"'; sed -n 1p
