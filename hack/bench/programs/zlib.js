const zlib = require('node:zlib');
const text = 'the quick brown fox '.repeat(5000);
const packed = zlib.gzipSync(text);
zlib.gunzip(packed, (err, back) => console.log(err, packed.length < 2000, back.toString() === text, zlib.brotliCompressSync('x'.repeat(100)).length < 50));
