import atexit, os
atexit.register(print, 'never')
print('not flushed')
os._exit(7)
