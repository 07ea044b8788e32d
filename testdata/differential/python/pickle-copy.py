import copy, copyreg, marshal, pickle, shelve, struct, weakref
class T:
    def __init__(self): self.a = [1]; self.me = self
t = pickle.loads(pickle.dumps(T())); print(t.a, t.me is t, copy.deepcopy(t).a is t.a, struct.pack('>IhB', 1, -2, 3), struct.unpack('<d', struct.pack('<d', 1.5)), marshal.loads(marshal.dumps({'a': (1, b'x')})))
with shelve.open('s') as s: s['k'] = {1: 2}
with shelve.open('s') as s: print(dict(s))
r = weakref.ref(t); del t; print(r() is not None); import gc; gc.collect(); print(r())
pickle.dumps(lambda: 0)
