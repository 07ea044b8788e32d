require('readline').createInterface({ input: process.stdin }).on('line', (l) => console.log('line:', l)).on('close', () => console.log('closed'));
