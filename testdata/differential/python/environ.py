import os
print(sorted(os.environ.items()))
print(os.environb[b'HOME'], os.getenv('NOT_THERE'), os.environ is not None)
os.environ['ADDED'] = 'ünï'
print(os.environb[b'ADDED'])
os.unsetenv('ADDED')
print('ADDED' in os.environ)
