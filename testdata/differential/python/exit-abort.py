import os, sys
sys.stdout.write('lost')
os.abort()
