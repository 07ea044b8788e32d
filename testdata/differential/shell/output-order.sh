echo one; echo two >&2; echo three; { echo four; echo five >&2; } 2>&1; echo six > /dev/stderr; echo seven > /dev/stdout; echo eight >> /dev/fd/1
