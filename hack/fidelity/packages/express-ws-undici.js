
		const express = require('express'), { WebSocketServer, WebSocket } = require('ws'), { request, Agent } = require('undici'); const app = express(); app.use(express.json({ limit: '5mb' }));
		app.post('/sum/:k', (q, r) => r.json({ k: q.params.k, sum: q.body.reduce((a, b) => a + b, 0), q: q.query })); app.get('/big', (q, r) => r.send('x'.repeat(3e6))); app.use((e, q, r, n) => r.status(418).send(e.type));
		const s = app.listen(0, '127.0.0.1', async () => { const u = 'http://127.0.0.1:' + s.address().port; const dispatcher = new Agent();
		const post = (body) => request(u + '/sum/a?b=1', { method: 'POST', headers: { 'content-type': 'application/json' }, body, dispatcher });
		console.log(await (await post(JSON.stringify(Array.from({ length: 100000 }, (_, i) => i)))).body.json()); const bad = await post('{'); console.log(bad.statusCode, await bad.body.text()); console.log((await (await request(u + '/big', { dispatcher })).body.text()).length);
		console.log((await Promise.all(Array.from({ length: 50 }, async (_, i) => (await (await post('[' + i + ']')).body.json()).sum))).reduce((a, b) => a + b));
		const wss = new WebSocketServer({ server: s }); wss.on('connection', (c) => c.on('message', (m, b) => c.send(m, { binary: b }))); const c = new WebSocket(u.replace('http', 'ws')); let n = 0;
		c.on('open', () => { c.send('hello'); c.send(Buffer.alloc(500000)) }).on('message', (m) => { n += m.length; if (n === 500005) c.close(1000) }).on('close', async (code) => { console.log(n, code); await dispatcher.close(); s.close(); s.closeAllConnections() }) })