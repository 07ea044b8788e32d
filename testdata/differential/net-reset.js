const net = require('node:net'), { once } = require('node:events');
(async () => {
  const r = net.createServer((c) => { c.on('error', (e) => console.log('peer', e.code)); c.resume(); setTimeout(() => c.resetAndDestroy(), 30) }); r.listen(0); await once(r, 'listening');
  const rc = net.connect(r.address().port); rc.on('error', (e) => console.log('client', e.code)); rc.write('x'); await new Promise((r) => rc.on('close', r)); console.log('closed'); r.close();
})();
