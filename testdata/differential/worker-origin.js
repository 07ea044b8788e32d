// A worker's clock begins where the program's does.
const { Worker } = require('worker_threads');
const w = new Worker('require("worker_threads").parentPort.postMessage([performance.timeOrigin, Math.abs(performance.timeOrigin + performance.now() - Date.now()) < 1000])', { eval: true });
w.on('message', ([origin, sane]) => console.log(origin === performance.timeOrigin, sane));
