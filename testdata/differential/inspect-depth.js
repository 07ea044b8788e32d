const util = require('util');
const o = { a: { b: { c: { d: { e: 1 } } } }, arr: Array.from({ length: 120 }, (_, i) => i), s: 'x'.repeat(200) };
o.self = o;
console.log(o); console.log(util.inspect(o, { depth: null, maxArrayLength: 3, maxStringLength: 10, compact: false, sorted: true }));
