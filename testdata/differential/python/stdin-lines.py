import sys
for n, line in enumerate(sys.stdin):
    print(n, repr(line))
print(repr(sys.stdin.readline()))
