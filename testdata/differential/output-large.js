const line = 'x'.repeat(99); for (let i = 0; i < 20000; i++) console.log(line);
