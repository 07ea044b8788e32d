import sys
for s in (sys.stdin, sys.stdout, sys.stderr):
    print(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.isatty(), s.fileno())
print(sys.stdin.buffer, sys.stdout.buffer, sys.stderr.buffer, sys.__stdout__ is sys.stdout)
