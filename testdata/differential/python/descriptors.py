import os
f = open(os.devnull)
print(f.fileno())
a, b = os.pipe()
print(a, b, os.get_inheritable(a), os.isatty(0), os.isatty(1))
print(sorted(int(n) for n in os.listdir('/proc/self/fd') if int(n) < 8))
