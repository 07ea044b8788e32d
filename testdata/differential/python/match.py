def f(x):
    match x:
        case {'k': [a, *rest], **more}: return ('map', a, rest, more)
        case (int() | float()) as n if n > 3: return ('num', n)
        case str(s): return ('str', s)
        case [1, _]: return 'list'
        case _: return None
print(f({'k': [1, 2, 3], 'z': 0}), f(5), f('x'), f([1, 9]), f(2))
print([(y := x * 2, y + 1) for x in range(3)], (lambda *a, k=1, **kw: (a, k, kw))(1, 2, z=3), *[1, 2], sep='|')
async def gen():
    yield 1
print(type(gen()).__name__, f'{"nested" + f"{1 + 1}"!r:>10}', f'{3.14159=:.2f}')
