mapfile -t lines; echo "${#lines[@]} ${lines[1]}"; printf '%q\n' "${lines[@]}"
