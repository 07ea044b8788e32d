no_such_command --x; echo $?
/etc/passwd; echo $?
./none; echo $?
cat /no/such/file; echo $?
