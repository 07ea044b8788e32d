const https = require('node:https');
https.get(process.env.HTTPS + '/items', (res) => {
  let body = '';
  res.setEncoding('utf8').on('data', (d) => (body += d)).on('end', () => console.log(res.statusCode, JSON.parse(body).length));
}).on('error', (e) => { console.error(e.message); process.exit(1); });
