const net = require('node:net'), { once } = require('node:events');
(async () => {
  const s = net.createServer((c) => c.on('data', (d) => { c.n = (c.n ?? 0) + d.length; if (c.n === c.want) c.write('all') })).listen(0, '127.0.0.1'); await once(s, 'listening');
  for (const n of [1, 500, 1460, 1461, 2000, 2900, 3000, 20000, 300000, 8 << 20]) {
    const c = net.connect(s.address().port, '127.0.0.1'), [peer] = await once(s, 'connection'); peer.want = n;
    c.write(Buffer.alloc(n)); console.log(n, String(await once(c, 'data'))); c.destroy();
  }
  s.close();
  // many small ones, and many at once
  const e = net.createServer((c) => c.pipe(c)).listen(0); await once(e, 'listening');
  const c = net.connect(e.address().port); let n = 0; c.on('data', (d) => n += d.length); for (let i = 0; i < 2000; i++) c.write('x'.repeat(i % 50 + 1)); c.end(); await once(c, 'close'); console.log(n);
  await Promise.all(Array.from({ length: 400 }, async () => { const c = net.connect(e.address().port); c.end('x'); c.on('data', (d) => n += d.length); await once(c, 'close') })); console.log(n); e.close();
})();
