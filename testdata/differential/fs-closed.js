'use strict';
// Whoever reads a file or asks for its length while another descriptor of it is closed
// sees what was written; and what is closed keeps its times.
const fs = require('fs'), { Worker, isMainThread, workerData } = require('worker_threads');
if (!isMainThread) {
  const { shared, name } = workerData, seen = new Int32Array(shared), buf = Buffer.alloc(10), wrong = new Set();
  const fd = fs.openSync(name, 'r');
  while (Atomics.load(seen, 0) === 0) {
    if (fs.statSync(name).size !== 1000) wrong.add('stat');
    if (fs.fstatSync(fd).size !== 1000) wrong.add('fstat');
    if (fs.readSync(fd, buf, 0, 10, 990) !== 10) wrong.add('read');
    if (fs.readvSync(fd, [buf], 990) !== 10) wrong.add('readv');
    if (fs.readFileSync(name).length !== 1000) wrong.add('readFile');
    Atomics.add(seen, 1, 1);
  }
  console.log('wrong:', [...wrong]);
} else {
  const dir = fs.mkdtempSync('/tmp/closed-'), name = dir + '/watched', shared = new SharedArrayBuffer(8), seen = new Int32Array(shared);
  fs.writeFileSync(name, 'x'.repeat(1000));
  const worker = new Worker(__filename, { workerData: { shared, name } });
  let closed = 0;
  (function again() {
    for (let i = 0; i < 20 && Atomics.load(seen, 1) > 0; i++, closed++) {
      const fd = fs.openSync(name, 'r+');
      fs.writeSync(fd, 'y', closed % 1000);
      fs.closeSync(fd);
    }
    if (closed < 100 || Atomics.load(seen, 1) < 10) return setTimeout(again, 5);
    Atomics.store(seen, 0, 1);
  })();
  worker.on('exit', async () => {
    const timed = dir + '/timed', fd = fs.openSync(timed, 'w');
    fs.writeSync(fd, 'abc');
    const before = fs.fstatSync(fd, { bigint: true });
    fs.closeSync(fd);
    const after = fs.statSync(timed, { bigint: true });
    console.log(before.mtimeNs === after.mtimeNs, before.atimeNs === after.atimeNs, after.size);
    fs.utimesSync(timed, 1, 1700000000);
    fs.closeSync(fs.openSync(timed, 'r+'));
    console.log(fs.statSync(timed).mtimeMs);
    const two = dir + '/two', a = fs.openSync(two, 'w'), b = fs.openSync(two, 'r+');
    fs.writeSync(a, 'aaaa'); fs.closeSync(a); fs.writeSync(b, 'bb', 8);
    console.log(fs.readFileSync(two));
    fs.closeSync(b);
    console.log(fs.readFileSync(two).length);
    const gone = fs.openSync(dir + '/gone', 'w+');
    fs.writeSync(gone, 'still'); fs.unlinkSync(dir + '/gone');
    console.log(fs.fstatSync(gone).size); fs.closeSync(gone);
    fs.writeFileSync(dir + '/secret', 'read-only', { mode: 0o400 });
    console.log(fs.readFileSync(dir + '/secret', 'utf8'));
    await Promise.all(Array.from({ length: 50 }, (_, i) => fs.promises.appendFile(dir + '/log', 'line ' + (i % 10) + '\n')));
    console.log(fs.statSync(dir + '/log').size);
    const sparse = dir + '/sparse', s = fs.openSync(sparse, 'w');
    fs.writeSync(s, 'end', 30_000_000); fs.closeSync(s);
    console.log(fs.statSync(sparse).size, fs.readFileSync(sparse).subarray(-3).toString());
    fs.truncateSync(sparse, 5);
    console.log(fs.readFileSync(sparse).length);
    fs.rmSync(dir, { recursive: true });
  });
}
