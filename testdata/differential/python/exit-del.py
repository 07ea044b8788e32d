import sys
class Noisy:
    def __init__(self, name): self.name = name
    def __del__(self): print('del', self.name, sys is not None)
a = Noisy('global')
b = [Noisy('in a list')]
c = Noisy('cycle'); c.self = c
del a
