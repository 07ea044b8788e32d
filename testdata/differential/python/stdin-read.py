import sys
print(repr(sys.stdin.read()))
print(repr(sys.stdin.read()))
