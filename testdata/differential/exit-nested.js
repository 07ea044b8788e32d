// A listener for exit that emits things, exit among them, and others behind it.
process.on('other', (x) => console.log('other', x));
process.once('exit', (c) => { console.log('first', c); process.emit('other', 1); process.emit('exit', 0); process.emitWarning('never told'); });
process.on('exit', (c) => { console.log('second', c, process._exiting); process.on('exit', () => console.log('too late')); });
console.log('main', process.listenerCount('exit'));
