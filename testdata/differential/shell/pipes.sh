printf 'c\na\nb\n' | sort | head -2 | tr a-z A-Z; seq 100000 | head -1; yes | head -3 | wc -l; echo "${PIPESTATUS[@]}"
