setTimeout(() => console.log('timeout 1000'), 1000); setImmediate(() => console.log('immediate'));
process.nextTick(() => console.log('tick')); Promise.resolve().then(() => console.log('micro')); queueMicrotask(() => console.log('micro 2'));
console.log('sync'); const t = setInterval(() => { console.log('interval'); if (++n === 3) clearInterval(t); }, 100); let n = 0;
