import os, sys
print('buffered')
sys.stdout.flush()
os.close(1)
print('lost')
