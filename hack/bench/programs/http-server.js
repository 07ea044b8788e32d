const http = require('node:http');
const server = http.createServer((req, res) => {
  const chunks = [];
  req.on('data', (c) => chunks.push(c)).on('end', () => res.end(`${req.method} ${Buffer.concat(chunks)}`));
}).listen(0, '127.0.0.1', () => {
  const req = http.request({ port: server.address().port, method: 'POST' }, (res) => {
    res.on('data', (d) => console.log(res.statusCode, String(d))).on('end', () => server.close());
  });
  req.end('some data');
});
