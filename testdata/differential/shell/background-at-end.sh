(sleep 0.3; echo never printed or late > /dev/null) & echo main ends
