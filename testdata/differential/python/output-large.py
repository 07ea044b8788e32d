import sys
for i in range(20000):
    print(i, 'x' * 20)
sys.stderr.write('y' * 100000 + '\n')
