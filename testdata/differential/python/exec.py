import os, sys
print('before', flush=True)
os.execv(sys.executable, [sys.executable, '-c', 'import sys; print("after", sys.argv)', 'x'])
