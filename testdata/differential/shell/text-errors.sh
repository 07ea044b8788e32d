grep x none; echo $?; sed 's/a' none; echo $?; sort --no-such; echo $?; ls --zz; echo $?; tar xf none; echo $?; bc <<< '1/0'; find none; echo $?; diff none none2; echo $?; cp; echo $?; test; echo $?
