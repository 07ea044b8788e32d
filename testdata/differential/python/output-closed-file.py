import sys
print('a')
sys.stdout.close()
sys.stderr.write('still\n')
print('b')
