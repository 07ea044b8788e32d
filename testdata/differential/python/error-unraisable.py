class Bad:
    def __del__(self): raise ValueError('in del')
x = Bad()
del x
print('goes on')
