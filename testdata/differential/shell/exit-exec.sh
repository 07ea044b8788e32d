echo before; exec printf 'after %s\n' exec
