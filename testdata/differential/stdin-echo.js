process.stdin.on('data', (d) => console.log('data', JSON.stringify(String(d)))).on('end', () => console.log('end'));
