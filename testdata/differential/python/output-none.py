import sys
sys.stdout = None
print('nowhere')
sys.stdout = sys.__stdout__
print('here', end='')
