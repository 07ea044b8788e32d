process.stdout.write(Buffer.from(Array.from({ length: 256 }, (_, i) => i)));
