# -*- coding: latin-1 -*-
print("ü".encode("latin-1"), len("ü"))
def f(é): return é
print(f.__code__.co_varnames[0].encode("unicode_escape"))
