console.group('g1'); console.log('in'); console.group(); console.warn('deeper'); console.groupEnd(); console.groupEnd(); console.log('out');
console.table([{ a: 1, b: 'x' }, { a: 2, c: true }]); console.table([[1, 2], [3, 4]], ['0']);
console.count(); console.count('x'); console.count(); console.countReset(); console.count();
console.dir({ a: { b: { c: { d: 1 } } } }, { depth: 0 }); console.assert(1 === 2, 'assertion %s', 'text'); console.assert(true);
