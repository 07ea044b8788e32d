console.log('plain', 1, -0, 1n, true, null, undefined, Symbol('s'));
console.log('%s|%d|%i|%f|%j|%o|%O|%%|%c', 'str', 42, 4.7, 1.5, { a: 1 }, [1], { b: { c: {} } }, 'css');
console.error('to stderr', new Map([[1, { a: 2 }]]));
console.info('info'); console.warn('warn'); console.debug('debug');
console.log(); console.log('%s'); console.log('%s', 'a', 'b');
