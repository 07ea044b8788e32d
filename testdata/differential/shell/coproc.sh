coproc C { while read -r l; do echo "got $l"; done; }; echo one >&"${C[1]}"; read -r r <&"${C[0]}"; echo "$r"; exec {C[1]}>&-; wait; echo "$?"
