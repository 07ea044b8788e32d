for (let i = 0; i < 500; i++) console.log('line', i); process.exit(3);
