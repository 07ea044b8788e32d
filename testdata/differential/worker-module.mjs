import { Worker, isMainThread, parentPort, MessageChannel, receiveMessageOnPort, BroadcastChannel } from 'worker_threads';
if (isMainThread) { const w = new Worker(new URL(import.meta.url)); w.on('message', (m) => console.log(m)); const { port1, port2 } = new MessageChannel(); port1.postMessage({ a: [1n] }); console.log(receiveMessageOnPort(port2)); port1.close(); w.on('exit', (c) => console.log('exit', c)); }
else parentPort.postMessage([import.meta.url.split('/').pop(), await 5]);
