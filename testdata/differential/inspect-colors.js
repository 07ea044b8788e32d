console.log(require('util').inspect({ a: 1, b: 's', c: null, d: undefined, e: Symbol('x'), f: /r/, g: new Date(0), h: () => {} }, { colors: true }));
console.log(process.stdout.isTTY, process.stderr.isTTY, process.stdin.isTTY, require('util').styleText('red', 'x', { validateStream: false }));
