import os, select
r, _, _ = select.select([0], [], [], 10)
print(r, os.read(0, 3), os.read(0, 100), os.read(0, 1))
