import ctypes, ctypes.util, array
libc = ctypes.CDLL(None); libc.strlen.restype = ctypes.c_size_t; print(libc.strlen(b'hello'), libc.abs(-3), ctypes.sizeof(ctypes.c_long))
class S(ctypes.Structure): _fields_ = [('a', ctypes.c_int), ('b', ctypes.c_double)]
print(S(1, 2.5).b, ctypes.sizeof(S), array.array('d', [1, 2]).tobytes()[:8]); f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1); print(f(4))
