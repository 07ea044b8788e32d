process.stdout.write('y'.repeat(3e6) + '\n', () => console.error('flushed'));
