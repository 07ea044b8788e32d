const net = require('node:net'), dgram = require('node:dgram'), { once } = require('node:events');
(async () => {
  const a = net.createServer().listen(0, '127.0.0.1'); await once(a, 'listening'); const { port } = a.address();
  const fails = async (e) => { const [error] = await once(e, 'error'); console.log(error.code, error.syscall) };
  await fails(net.createServer().listen(port, '127.0.0.1')); await fails(net.createServer().listen(port)); await fails(net.createServer().listen(0, '192.0.2.1'));
  const other = net.createServer().listen(port, '127.0.0.2'); await once(other, 'listening'); console.log(other.address().address, other.address().port === port); other.close();
  await fails(net.connect({ port, host: '127.0.0.1', localPort: port, localAddress: '127.0.0.1' })); await fails(net.connect(1, '127.0.0.1'));
  const c = net.connect({ port, host: '127.0.0.1', localAddress: '127.0.0.3' }), [p] = await once(a, 'connection'); console.log(p.remoteAddress, p.localAddress, p.remotePort === c.localPort, c.remotePort === port); c.destroy(); a.close(); await once(a, 'close'); await fails(net.connect(port, '127.0.0.1'));
  const again = net.createServer().listen(port, '127.0.0.1'); await once(again, 'listening'); again.close();
  const s = dgram.createSocket('udp4'); s.bind(0, '127.0.0.1'); await once(s, 'listening');
  for (const n of [1, 1472, 9000, 65000]) { dgram.createSocket('udp4').unref().send(Buffer.alloc(n), s.address().port, '127.0.0.1'); console.log((await once(s, 'message'))[0].length) }
  console.log(await new Promise((r) => s.send(Buffer.alloc(70000), s.address().port, '127.0.0.1', (e) => r(e.code)))); const t = dgram.createSocket('udp4'); t.bind(s.address().port, '127.0.0.1'); await fails(t); s.close();
})();
