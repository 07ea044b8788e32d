import bz2, gzip, io, lzma, tarfile, zipfile, zlib
d = b'abc' * 1000
for m in (bz2, gzip, lzma, zlib): print(m.__name__, m.decompress(m.compress(d)) == d)
print(len(zlib.compress(d, 9)), zlib.ZLIB_RUNTIME_VERSION == zlib.ZLIB_VERSION)
b = io.BytesIO()
with zipfile.ZipFile(b, 'w', zipfile.ZIP_LZMA) as z: z.writestr('a/b.txt', d)
print(zipfile.ZipFile(b).testzip(), zipfile.ZipFile(b).namelist())
b = io.BytesIO()
with tarfile.open(fileobj=b, mode='w:xz') as t: i = tarfile.TarInfo('x'); i.size = 3; t.addfile(i, io.BytesIO(b'abc'))
b.seek(0); print(tarfile.open(fileobj=b).getnames())
zlib.decompress(b'nonsense')
