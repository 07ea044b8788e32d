process.on('exit', (c) => console.log('c', c)); Promise.reject(new Error('unhandled'));
