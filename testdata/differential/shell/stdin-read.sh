read -r first; echo "[$first]"; while IFS= read -r l || [ -n "$l" ]; do echo "<$l>"; done; read -r x; echo $?
