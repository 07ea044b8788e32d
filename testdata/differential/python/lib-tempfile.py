import os, tempfile
with tempfile.NamedTemporaryFile('w+', suffix='.txt') as f:
    f.write('x'); f.flush(); print(os.path.dirname(f.name), os.path.getsize(f.name), oct(os.stat(f.name).st_mode))
with tempfile.TemporaryDirectory() as d: print(os.path.isdir(d), oct(os.stat(d).st_mode))
print(os.path.exists(d), tempfile.gettempdir(), len((made := tempfile.mkdtemp()).rpartition('/')[2]))
os.rmdir(made)
with tempfile.TemporaryFile() as f: f.write(b'abc'); f.seek(1); print(f.read())
