const { Worker, isMainThread, parentPort, workerData, threadId } = require('worker_threads');
if (isMainThread) {
  console.log('main', threadId, __filename === process.argv[1]);
  const w = new Worker(__filename, { workerData: { n: 5 }, argv: ['x'] });
  w.on('message', (m) => console.log('message', m)); w.on('exit', (c) => console.log('exit', c)); w.on('error', (e) => console.log('error', e.message)); w.postMessage('ping');
} else {
  parentPort.once('message', (m) => { parentPort.postMessage([m, workerData, threadId, isMainThread, process.argv.slice(2), require.main === module, process.execArgv, Object.keys(require.cache).length]); process.exit(3); });
}
