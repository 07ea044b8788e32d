const util = require('node:util');
const deep = { a: { b: { c: { d: [new Map([['k', new Set([1, 2])]]), new Date(0), /x/g, Symbol('s'), 10n] } } }, f() {}, get g() { return 1; } };
deep.self = deep;
console.log(util.inspect(deep, { depth: null, colors: true }));
console.table([{ a: 1, b: 'x' }, { a: 2, b: 'y' }]);
