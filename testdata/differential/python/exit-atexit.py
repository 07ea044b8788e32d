import atexit, sys
@atexit.register
def last():
    print('last', sys.is_finalizing())
atexit.register(print, 'first', 1)
def fails():
    raise ValueError('in atexit')
atexit.register(fails)
def leaves():
    sys.exit(9)
atexit.register(leaves)
print(atexit._ncallbacks())
sys.exit(4)
