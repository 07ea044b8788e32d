ls /proc/self/fd | grep -c '^[0-9]$'; exec 5>f; echo five >&5; cat f; exec 5>&-; echo x 2>/dev/null >&5; echo $?; exec {fd}<f; echo $((fd >= 10))
