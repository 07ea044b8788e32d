echo x > /no/such/dir/f; echo $?
cat < none; echo $?
echo x > /; echo $?
