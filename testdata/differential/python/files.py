import io, mmap, os, fcntl
with open('f', 'w+', encoding='utf-16') as f: f.write('a\nb'); f.seek(0); print(f.readlines(), f.tell())
with open('f', 'rb') as f: print(f.read())
with open('g', 'x', newline='\r\n') as f: print(f.write('1\n2\n'))
print(open('g', newline='').read().encode(), io.BytesIO(b'xy').read(1))
with open('m', 'wb+') as f:
    f.truncate(4096)
    with mmap.mmap(f.fileno(), 0) as m: m[0:3] = b'abc'; print(m.find(b'c'))
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print(os.fstat(f.fileno()).st_size)
try: open('g', 'x')
except FileExistsError as e: print(e)
open('/no/such/dir/f', 'w')
