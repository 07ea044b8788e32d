const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');
if (isMainThread) {
  new Worker(__filename, { workerData: 20 }).on('message', (m) => console.log('fib', m)).on('exit', (c) => console.log('exit', c));
} else {
  const fib = (n) => (n < 2 ? n : fib(n - 1) + fib(n - 2));
  parentPort.postMessage(fib(workerData));
}
