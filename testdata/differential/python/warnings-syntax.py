x = 1
if x is 1:
    print('one')
s = '\d'
assert (x, 'always true')
