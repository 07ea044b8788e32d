console.log(Math.random() !== Math.random(), new Set(Array.from({ length: 1000 }, Math.random)).size, crypto.randomUUID() !== crypto.randomUUID(), crypto.getRandomValues(new Uint8Array(8)).length);
