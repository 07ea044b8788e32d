const http = require('node:http');
class Client {
  constructor(base) { this.base = base; this.interceptors = []; }
  use(f) { this.interceptors.push(f); return this; }
  request(method, path, data) {
    return new Promise((resolve, reject) => {
      const config = this.interceptors.reduce((c, f) => f(c), { method, headers: { accept: 'application/json' } });
      const body = data && JSON.stringify(data);
      if (body) Object.assign(config.headers, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) });
      const req = http.request(this.base + path, config, (res) => {
        let text = '';
        res.on('data', (d) => (text += d)).on('end', () => resolve({ status: res.statusCode, data: JSON.parse(text) }));
      }).on('error', reject);
      req.setTimeout(10000, () => req.destroy(new Error('timeout')));
      req.end(body);
    });
  }
}
const client = new Client(process.env.HTTP).use((c) => ({ ...c, headers: { ...c.headers, 'x-client': 'demo' } }));
client.request('POST', '/echo', { a: [1, 2, 3] }).then(({ status, data }) => console.log(status, data));
