try:
    x = bytearray(1 << 62)
except MemoryError as e:
    print(repr(e))
'x' * (1 << 62)
