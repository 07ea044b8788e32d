echo ${x:?must be set}
echo never
