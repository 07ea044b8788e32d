const util = require('util');
console.log(util.format('%s %s', 'a'), util.isDeepStrictEqual({ a: [1] }, { a: [1] }), util.types.isPromise(Promise.resolve()));
console.log(util.inspect(util.parseArgs({ args: ['-f', '--bar', 'b'], options: { foo: { type: 'boolean', short: 'f' }, bar: { type: 'string' } } })));
util.promisify(setTimeout)(1).then(() => console.log('promisified'));
console.log(util.stripVTControlCharacters('\u001b[31mred\u001b[0m'), util.toUSVString('\ud800'), new util.TextDecoder('utf-16le').decode(Buffer.from('a\0b\0')));
util.deprecate(() => {}, 'old thing', 'DEP9999')();
