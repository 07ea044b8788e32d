import readline from 'node:readline';
let count = 0, words = 0;
for await (const line of readline.createInterface({ input: process.stdin })) { count++; words += line.split(/\s+/).filter(Boolean).length; }
console.log(count, words);
