print(sorted(k for k in globals()))
print(__name__, __doc__, __package__, __spec__, __cached__ if '__cached__' in globals() else '-', __builtins__.__name__)
print(__file__.rpartition('/')[2], type(__loader__).__name__, __loader__.name)
