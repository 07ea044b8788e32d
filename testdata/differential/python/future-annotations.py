from __future__ import annotations
def f(x: NoSuch) -> "also": return x
print(f.__annotations__, __annotations__ if '__annotations__' in globals() else '')
x: int = 5
print(__annotations__)
