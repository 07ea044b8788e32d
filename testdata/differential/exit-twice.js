// A listener for exit that exits itself.
process.on('exit', (c) => { console.log('first', c); process.exit(0); });
process.on('exit', () => console.log('never'));
