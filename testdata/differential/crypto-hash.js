const c = require('crypto');
for (const a of ['md5', 'sha1', 'sha256', 'sha512', 'sha3-256', 'blake2b512', 'ripemd160']) console.log(a, c.createHash(a).update('x').digest('hex'));
console.log(c.createHmac('sha256', 'k').update('d').digest('base64'), c.pbkdf2Sync('p', 's', 10, 16, 'sha1').toString('hex'), c.scryptSync('p', 's', 16, { N: 16 }).toString('hex'), c.hash('sha1', 'a'));
console.log(Buffer.from(c.hkdfSync('sha256', 'k', 's', 'i', 8)).toString('hex'), c.timingSafeEqual(Buffer.from('a'), Buffer.from('a')), c.getHashes().length, c.getCiphers().length, c.getCurves().length);
