// An exception that nobody caught, and a listener that says it is nothing.
process.on('exit', (c) => { console.log('exit', c); process.exitCode = 0; });
process.on('beforeExit', () => console.log('never'));
setTimeout(() => { throw new RangeError('told') }, 1);
