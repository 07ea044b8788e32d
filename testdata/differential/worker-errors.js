const { Worker } = require('worker_threads');
new Worker('throw new RangeError("in worker")', { eval: true }).on('error', (e) => console.log(e.name, e.message)).on('exit', (c) => console.log('exit', c));
const sab = new SharedArrayBuffer(4); const w = new Worker('const {workerData}=require("worker_threads"); const a=new Int32Array(workerData); Atomics.store(a,0,9); Atomics.notify(a,0)', { eval: true, workerData: sab });
w.on('exit', () => setTimeout(() => console.log('shared', new Int32Array(sab)[0]), 300));
