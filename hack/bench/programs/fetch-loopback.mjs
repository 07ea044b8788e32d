import http from 'node:http';
const server = http.createServer((req, res) => res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ url: req.url })));
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const r = await fetch(`http://127.0.0.1:${server.address().port}/x?y=1`);
console.log(r.status, await r.json());
server.close();
