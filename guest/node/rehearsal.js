// The throw-away program does what nearly every program does, so that V8 has compiled that code before
// the user's program comes. It must not draw a random number, because every clone would get the same.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const util = require('node:util');

class Point {
  #y = 2;
  constructor(x) { this.x = x; }
  get y() { return this.#y; }
  toString() { return `(${this.x}, ${this.y})`; }
}

function* count(n) { for (let i = 0; i < n; i++) yield i; }

console.log('rehearsal', [1, { a: 'b' }], new Map([[1, 2]]), `${new Point(1)}`, util.inspect(new Error('x')).length);
console.error('rehearsal', process.platform, process.pid, process.argv.length);
path.resolve('x', '..', path.basename(__filename));
fs.existsSync(__filename) && fs.readFileSync(__filename, 'utf8').split('\n').length;
JSON.parse(JSON.stringify({ a: [1, 'x', null, ...count(3)] }));
[...'rehearsal'].map((c) => c.toUpperCase()).sort().join();
Object.entries({ a: 1, b: 2 }).reduce((sum, [, v]) => sum + v, 0);
Buffer.from('rehearsal').toString('base64').replace(/[a-z]+/g, '-');
try { throw new TypeError('x'); } catch (e) { String(e.stack); }
new Promise((resolve) => resolve()).then(() => {});
(async () => { await null; })();

// more loads modules and kinds of files that programs usually load first. It does nothing that draws
// random numbers (UUIDs), stores the time (a Date header), or changes a count that programs see
// (workers). It does not use TCP, whose sequence numbers come from a secret of the kernel, or SQLite,
// which warns only the first time. preload.js chooses how much to load.
if (process.argv.includes('more')) more();
if (process.argv.includes('network')) network().catch((e) => console.error(e));

function more() {
  for (const name of ['assert', 'child_process', 'crypto', 'events', 'http', 'https', 'os', 'readline', 'stream/promises',
    'timers/promises', 'url', 'zlib']) require('node:' + name);
  fs.writeFileSync('module.mjs', "import fs, { readFileSync } from 'node:fs';\nimport { join } from 'node:path';\nexport default await join('a', 'b');\n");
  import(path.resolve('module.mjs')).then((m) => console.log(m.default));
  require('node:crypto').createHash('sha256').update('rehearsal').digest('hex');
  crypto.subtle.digest('SHA-256', Buffer.from('rehearsal')).then((d) => Buffer.from(d).toString('hex'));
  require('node:zlib').gunzipSync(require('node:zlib').gzipSync('rehearsal'));
  new Intl.NumberFormat('en-US').format(1234567.8);
  new Date(0).toLocaleString('en-US', { timeZone: 'UTC' });
  ['b', 'a'].sort(new Intl.Collator('en').compare);
  new URL('https://a.b/c?d=e').searchParams.append('x', 'y');
  util.inspect({ a: { b: { c: { d: new Date(0) } } } }, { depth: 9 });
  require('node:stream/promises').pipeline(require('node:stream').Readable.from(['a']), new (require('node:stream').PassThrough)().resume());
  setTimeout(() => {}, 0);
}

// network runs an HTTP server and a client on a Unix socket, and fetch without a network. fetch's
// parser is WebAssembly, which V8 would otherwise compile and optimize again in every clone.
async function network() {
  const http = require('node:http');
  const server = http.createServer((request, response) => {
    response.sendDate = false;
    response.end('{"a":1}');
  });
  await new Promise((resolve) => server.listen('socket', resolve));
  await new Promise((resolve) => http.get({ socketPath: 'socket', agent: false }, (response) => response.resume().on('end', resolve)));
  await (await fetch('data:,x')).text();
  server.close();
}
