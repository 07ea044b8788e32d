const c = require('crypto'); const k = Buffer.alloc(32, 1), iv = Buffer.alloc(12, 2);
const e = c.createCipheriv('aes-256-gcm', k, iv); const ct = Buffer.concat([e.update('secret'), e.final()]); console.log(ct.toString('hex'), e.getAuthTag().toString('hex'));
const d = c.createDecipheriv('aes-256-gcm', k, iv); d.setAuthTag(Buffer.alloc(16)); try { d.update(ct); d.final(); } catch (x) { console.log(x.message); }
const { publicKey, privateKey } = c.generateKeyPairSync('ed25519'); console.log(c.verify(null, Buffer.from('m'), publicKey, c.sign(null, Buffer.from('m'), privateKey)), publicKey.asymmetricKeyType);
console.log(c.randomBytes(8).length, c.randomUUID().length, c.randomInt(3) < 3, new Set(Array.from({ length: 50 }, () => c.randomUUID())).size);
