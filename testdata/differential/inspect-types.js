const util = require('util');
class Foo { #p = 1; static x = 2; get y() { return 3; } } class Bar extends Foo { constructor() { super(); this.z = [ , 1]; } }
console.log(new Foo(), new Bar(), Foo, Bar, class {}, () => {}, function named() {}, async () => {}, function* g() {});
console.log([new Set([1, 'a']), new WeakMap(), new Map([['k', new Map()]]), new Proxy({ a: 1 }, {}), Symbol.iterator]);
console.log(new Error('e').message, new Date(0), /re/gi, new Uint8Array(3), new ArrayBuffer(4), new DataView(new ArrayBuffer(2)), Buffer.from('hi'));
console.log([1.0, -0, NaN, Infinity, 123456789012345678901234567890n], [undefined, null], { 'a-b': 1, 3: 4, [Symbol('q')]: 5 });
console.log(Promise.resolve(4), Promise.reject(new Error('x')).catch(() => {}) && 0, globalThis === global, [[]], {}, Object.create(null), Object.create({ x: 1 }));
console.log(util.inspect({ get a() { return 1; }, set b(v) {} }, { getters: true, showHidden: true }), util.inspect('q\'"`\n\u0001'));
console.log(util.inspect(new (class extends Map { constructor() { super([[1, 2]]); } })()), [,'a',,], Object.assign(() => {}, { p: 1 }));
