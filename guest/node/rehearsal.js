// The throw-away program: does what nearly every program does, so that it is
// compiled when the user's comes. Nothing here may draw a random number: every
// clone would have the same one.
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
