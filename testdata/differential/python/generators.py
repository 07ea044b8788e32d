import contextlib
def g():
    try:
        x = yield 1; print('sent', x); yield 2
    finally: print('closed')
i = g(); print(next(i), i.send('v')); i.close()
@contextlib.contextmanager
def c():
    print('in')
    try: yield 5
    except ValueError as e: print('caught', e)
with c() as v: raise ValueError(v)
with contextlib.ExitStack() as s: s.callback(print, 'unwound'); s.enter_context(contextlib.suppress(KeyError)); {}['x']
def h():
    return (yield from g2())
def g2(): yield 1; return 'r'
try:
    k = h(); next(k); next(k)
except StopIteration as e: print(e.value)
def bad(): raise StopIteration
list(bad() for _ in range(1))
