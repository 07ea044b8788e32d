process.on('exit', (c) => { console.log('was', c); process.exitCode = 4; }); process.on('beforeExit', () => console.log('before')); console.log('main');
