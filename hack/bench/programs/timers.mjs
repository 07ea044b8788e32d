import { setTimeout as sleep, setInterval as every } from 'node:timers/promises';
const order = [];
await Promise.all([sleep(5).then(() => order.push('b')), Promise.resolve().then(() => order.push('a'))]);
let n = 0;
for await (const _ of every(1)) if (++n === 3) break;
async function* numbers(k) { for (let i = 0; i < k; i++) { await null; yield i; } }
for await (const i of numbers(5)) order.push(i);
console.log(order.join());
