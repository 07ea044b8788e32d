// TLS 1.3 on the loopback as it comes: the server's first flight is a certificate of some 2 KiB.
const tls = require('node:tls'), https = require('node:https'), crypto = require('node:crypto'), { once } = require('node:events');
const der = (tag, ...parts) => { const b = Buffer.concat(parts); return Buffer.concat([Buffer.from(b.length < 128 ? [tag, b.length] : [tag, 0x82, b.length >> 8, b.length & 255]), b]) };
const { publicKey, privateKey } = crypto.generateKeyPairSync('ec', { namedCurve: 'P-256' });
const name = der(0x30, der(0x31, der(0x30, Buffer.from('0603550403', 'hex'), der(0x0c, Buffer.from('localhost')))));
const ecdsa = der(0x30, Buffer.from('06082a8648ce3d040302', 'hex')), time = (y) => der(0x17, Buffer.from(`${y}0101000000Z`));
const names = der(0x30, ...['localhost', ...Array.from({ length: 30 }, (_, i) => `${'name'.repeat(12)}-${i}.example`)].map((n) => der(0x82, Buffer.from(n))));
const extensions = der(0xa3, der(0x30, der(0x30, Buffer.from('0603551d11', 'hex'), der(0x04, names))));
const tbs = der(0x30, Buffer.from('a003020102', 'hex'), der(0x02, Buffer.from([1])), ecdsa, name, der(0x30, time(20), time(49)), name, publicKey.export({ type: 'spki', format: 'der' }), extensions);
const cert = '-----BEGIN CERTIFICATE-----\n' + der(0x30, tbs, ecdsa, der(0x03, Buffer.from([0]), crypto.sign('sha256', tbs, privateKey))).toString('base64').match(/.{1,64}/g).join('\n') + '\n-----END CERTIFICATE-----\n';
const key = privateKey.export({ type: 'pkcs8', format: 'pem' });
(async () => {
  const s = tls.createServer({ key, cert }, (c) => c.pipe(c)).listen(0, '127.0.0.1'); await once(s, 'listening');
  const c = tls.connect({ port: s.address().port, host: '127.0.0.1', servername: 'localhost', ca: cert }); await once(c, 'secureConnect'); console.log(c.getProtocol(), c.authorized, cert.length > 2000);
  for (const n of [1, 2000, 50000]) { c.write(Buffer.alloc(n)); for (let got = 0; got < n;) got += (await once(c, 'data'))[0].length; console.log(n) } c.end(); await once(c, 'close'); s.close();
  const web = https.createServer({ key, cert }, (q, r) => q.on('data', () => {}).on('end', () => r.end('x'.repeat(2000)))).listen(0, '127.0.0.1'); await once(web, 'listening');
  const q = https.request({ port: web.address().port, host: '127.0.0.1', servername: 'localhost', ca: cert, method: 'POST' }); q.end(Buffer.alloc(2000)); const [r] = await once(q, 'response'); let n = 0; for await (const d of r) n += d.length; console.log(r.statusCode, n); web.close(); web.closeAllConnections();
})();
