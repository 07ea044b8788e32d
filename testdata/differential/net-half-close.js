const net = require('node:net'), { once } = require('node:events');
(async () => {
  for (const where of [{ port: 0, host: '127.0.0.1' }, { path: require('node:fs').mkdtempSync('/tmp/unix-') + '/s' }]) {
    const s = net.createServer({ allowHalfOpen: true }, (c) => { let n = 0; c.on('data', (d) => n += d.length).on('end', () => setTimeout(() => { c.write(`got ${n} `); c.end(Buffer.alloc(700000, 'x')) }, 50)); c.on('error', (e) => console.log('server', e.code)) });
    s.listen(where); await once(s, 'listening');
    for (const n of [8, 2000, 600000]) { const c = net.connect(s.address().port ? { ...s.address(), host: '127.0.0.1' } : where); c.end(Buffer.alloc(n)); let text = ''; c.on('data', (d) => text += d); await once(c, 'close'); console.log(text.length, text.slice(0, 12)) }
    s.close();
  }
  const u = '/tmp/' + process.pid + '.sock', a = net.createServer((c) => c.end('hello')).listen(u); await once(a, 'listening');
  const b = net.createServer().listen(u); console.log((await once(b, 'error'))[0].code, require('node:fs').statSync(u).isSocket()); a.close(); await once(a, 'close'); console.log(require('node:fs').existsSync(u), (await once(net.connect(u), 'error'))[0].code);
  const named = net.createServer((c) => c.end('abstract')).listen('\0name'); await once(named, 'listening'); console.log(String(await once(net.connect('\0name'), 'data'))); named.close();
})();
