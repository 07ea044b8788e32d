import sys
sys.stdin.close()
try: input()
except (EOFError, ValueError, RuntimeError) as e: print(repr(e))
print(sys.stdin.closed)
input()
