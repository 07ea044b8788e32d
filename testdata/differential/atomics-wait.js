// Waits that end by their time, however short it is: also those whose time is over before they begin.
const lock = new Int32Array(new SharedArrayBuffer(8));
const ends = {};
for (let i = 0; i < 80; i++) {
  const end = Atomics.wait(lock, 0, 0, [0, 0.001, 0.01, 0.1, 0.5, 1, 2, 5][i % 8]);
  ends[end] = (ends[end] ?? 0) + 1;
}
console.log(ends, Atomics.wait(lock, 0, 1, 0.01), Atomics.wait(lock, 1, 0, 30));

// And those that somebody ends: a worker that wakes the main thread, and is waited for.
const { Worker } = require("node:worker_threads");
const worker = new Worker(`
  const { workerData: lock } = require("node:worker_threads");
  for (let i = 0; i < 20; i++) {
    Atomics.wait(lock, 1, 0, 0.2);
    Atomics.add(lock, 0, 1);
    Atomics.notify(lock, 0);
  }`, { eval: true, workerData: lock });
worker.on("online", () => {
  for (let seen; (seen = Atomics.load(lock, 0)) < 20; ) Atomics.wait(lock, 0, seen, 5);
  console.log(Atomics.load(lock, 0));
});
worker.on("exit", (code) => console.log("exit", code));
