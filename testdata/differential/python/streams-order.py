import os, sys
print('one')
print('two', file=sys.stderr)
os.write(1, b'raw\n')
os.write(2, b'raw\n')
sys.stdout.write('three\n')
sys.stdout.flush()
os.write(1, b'end\n')
