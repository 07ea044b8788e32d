const z = require('zlib'); const d = Buffer.from('hello '.repeat(1000));
for (const [a, b] of [['gzipSync', 'gunzipSync'], ['deflateSync', 'inflateSync'], ['brotliCompressSync', 'brotliDecompressSync'], ['deflateRawSync', 'inflateRawSync'], ['zstdCompressSync', 'zstdDecompressSync']]) console.log(a, z[a](d).length, z[b](z[a](d)).equals(d));
console.log(z.crc32('abc')); // one after the other: threads end in any order
z.gunzip(Buffer.from('junk'), (e) => { console.log(e.code, e.errno); z.createGzip().on('data', (c) => console.log(c.length > 0)).end('x'); });
