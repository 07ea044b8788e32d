const crypto = require('node:crypto');
console.log(crypto.createHash('sha256').update('hello').digest('hex'));
console.log(crypto.createHmac('sha1', 'key').update('data').digest('base64'));
console.log(crypto.randomUUID().length, crypto.randomBytes(8).length);
globalThis.crypto.subtle.digest('SHA-512', new TextEncoder().encode('x')).then((d) => console.log(Buffer.from(d).toString('hex').slice(0, 16)));
