setTimeout(() => { throw new Error('late'); }, 2); process.on('exit', (c) => console.log('code', c));
