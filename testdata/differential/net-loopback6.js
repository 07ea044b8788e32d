const net = require('node:net'), http = require('node:http'), { once } = require('node:events');
(async () => {
  const s = net.createServer((c) => c.end('six')).listen(0, '::1'); await once(s, 'listening'); console.log(s.address().address, s.address().family);
  const c = net.connect(s.address().port, '::1'), [p] = await once(s, 'connection'); console.log(p.remoteAddress, p.localAddress, c.remoteAddress, p.remoteFamily, String(await once(c, 'data'))); s.close();
  const dual = net.createServer().listen(0); await once(dual, 'listening'); console.log(dual.address().address);
  for (const host of ['127.0.0.1', '::1', 'localhost']) { const d = net.connect(dual.address().port, host), [dp] = await once(dual, 'connection'); if (host !== 'localhost') console.log(dp.remoteAddress, dp.localAddress); d.destroy() } dual.close();
  const web = http.createServer((q, r) => r.end(q.url)).listen(0, '::1'); await once(web, 'listening'); console.log(await (await fetch(`http://[::1]:${web.address().port}/x`)).text()); web.close(); web.closeAllConnections();
  const [e] = await once(net.connect(1, '::1'), 'error'); console.log(e.code);
})();
