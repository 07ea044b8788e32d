// The throw-away script: touches what nearly every script touches, so that it is
// compiled when the user's comes. Nothing here may draw a random number: every
// clone would have the same one.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const util = require('node:util');
require('node:module');
console.log('warm', [1, { a: 'b' }], new Map([[1, 2]]), util.inspect(new Error('x')).length);
console.error('warm');
path.resolve('x', '..', path.basename(__filename));
fs.existsSync('/tmp');
JSON.parse(JSON.stringify({ a: [1, 'x', null] }));
[..."warm"].map((c) => c.toUpperCase()).sort().join();
Buffer.from('warm').toString('base64');
new Promise((resolve) => resolve()).then(() => {});
(async () => { await null; })();
