// beforeExit that gives the loop more to do, and what performance tells of the loop.
const { performance } = require('node:perf_hooks');
let left = 2;
console.log(performance.nodeTiming.loopStart, performance.nodeTiming.loopExit, process._exiting, process.exitCode, process.listenerCount('exit'), process.listenerCount('beforeExit'));
process.on('beforeExit', (c) => { console.log('before', c, left); if (left-- > 0) setTimeout(() => console.log('more'), 1); });
process.on('exit', (c) => console.log('exit', c, performance.nodeTiming.loopStart > 0));
