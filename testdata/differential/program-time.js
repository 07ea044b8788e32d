// The program's time begins with it, and all that tells it agrees.
const { isMainThread, parentPort, Worker } = require('worker_threads');
const { nodeTiming } = performance, first = performance.now();
function agree() {
  const { nodeStart, v8Start, environment, bootstrapComplete } = nodeTiming;
  const began = isMainThread ? bootstrapComplete : v8Start;
  const rows = {
    order: 0 < nodeStart && nodeStart < v8Start && v8Start < environment && environment < bootstrapComplete && began < first,
    loop: isMainThread ? nodeTiming.loopStart === -1 : nodeTiming.loopStart >= bootstrapComplete,
    now: inTurn(first, () => performance.now()),
    duration: inTurn(performance.now(), () => nodeTiming.duration),
    mark: inTurn(performance.now(), () => performance.mark('x').startTime),
    event: inTurn(performance.now(), () => new Event('x').timeStamp),
    uptime: inTurn(performance.now() - nodeStart, () => process.uptime() * 1000), // its zero is nodeStart
    clock: Math.abs(performance.timeOrigin + performance.now() - Date.now()) < 1000,
    json: performance.toJSON().timeOrigin === performance.timeOrigin,
    own: typeof Object.getOwnPropertyDescriptor(Performance.prototype, 'timeOrigin').get === 'function' && Performance.prototype.hasOwnProperty('now'),
    utilization: isMainThread ? performance.eventLoopUtilization().active === 0 : performance.eventLoopUtilization().active >= 0,
    entries: performance.getEntries().length,
  };
  return rows;
  // inTurn: between two readings of one clock lies one of the other.
  function inTurn(before, other) {
    const zero = performance.now(), value = other();
    return before <= value && value <= before + (performance.now() - zero) + 1000;
  }
}
if (isMainThread) {
  console.log(agree());
  const worker = new Worker(__filename);
  worker.on('message', ([rows, origin]) => {
    console.log(rows, origin === performance.timeOrigin);
    console.log(nodeTiming.loopStart >= nodeTiming.bootstrapComplete, nodeTiming.loopStart <= performance.now());
  });
} else {
  parentPort.postMessage([agree(), performance.timeOrigin]);
}
