import { setTimeout as sleep, setInterval, scheduler } from 'timers/promises';
const t = Date.now(); await sleep(30); console.log(Date.now() - t >= 28, await sleep(1, 'value'));
let n = 0; for await (const x of setInterval(2, 'i')) { console.log(x); if (++n === 3) break; } await scheduler.yield(); console.log('done');
