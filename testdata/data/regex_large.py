# Regular expressions over a file of 100 MB, as much of it in memory as the kernel likes.
import collections
import mmap
import random
import re

rng = random.Random(7)
lines = [b'10.0.%d.%d - - [22/Nov/2026:16:%02d:%02d +0000] "GET %s HTTP/1.1" %d %d\n' % (
    rng.randrange(4), rng.randrange(256), i // 60 % 60, i % 60, rng.choice([b'/', b'/login', b'/api/items']), rng.choice([200, 200, 200, 404, 500]), rng.randrange(10**5)) for i in range(2000)]
block, copies = b''.join(lines), 0
with open('/tmp/access.log', 'wb') as f:
    while f.tell() < 100 << 20:
        f.write(block)
        copies += 1
failed = re.compile(rb'"GET (\S+) HTTP/1\.1" 500 ')
with open('/tmp/access.log', 'rb') as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as log:
    found = collections.Counter(m[1] for m in failed.finditer(log))
    print(len(log) >= 100 << 20, failed.search(log, len(log) - len(block)) is not None)
want = collections.Counter(line.split()[6] for line in lines if line.split()[8] == b'500')
print(found == {path: copies * n for path, n in want.items()}, sorted(path.decode() for path in found))
