// What runs in Node before the user's code: preloaded with --require, it tells
// the agent (agent.c) that Node is up, waits for the start, makes the process
// look as if `node main.js args` had been typed, and gets out of the way.
// Node itself then loads /unitask/main, a link to the user's file, so that
// module kinds, stack traces and exit paths are Node's own.
'use strict';

let CTL; // stream to agent.c: frames in (u32 length, type, payload), letters out

// Workers inherit --require: nothing to do there but to leave no trace. chdir is
// disabled in them, and asking it costs nothing; loading worker_threads to ask
// it takes a tenth of a second under TCG.
delete require.cache[__filename];
process.execArgv = [];
if (!process.chdir.disabled) main();

function main() {
  const fs = require('node:fs');
  const native = loadNative();
  CTL = native.attach();

  const start = JSON.parse(waitForStart(fs).toString());

  // Refuse to run on entropy that others have: a clone shares all its state.
  const entropy = Buffer.from(start.entropy, 'hex');
  if (entropy.length !== 64) throw new Error('unitask: no fresh entropy in the start');
  native.seed(entropy);
  startClock();

  for (const name of Object.keys(process.env)) delete process.env[name];
  Object.assign(process.env, start.env);
  process.chdir(start.cwd);
  process.argv = [process.execPath, ...start.argv];
  if (start.ca) {
    const tls = require('node:tls');
    tls.setDefaultCACertificates([...tls.getCACertificates('default'), ...start.ca.match(/-----BEGIN CERTIFICATE-----[^]+?-----END CERTIFICATE-----/g)]);
  }
  // Nanos: a file system without modes; what was not given stays as it is.
  if (native.nanos) native.protect(['/tmp', '/out', '/home/user', '/dev', start.cwd]);
  fs.writeSync(CTL, 'S');
  fs.closeSync(CTL);
}

// startClock mends performance.timeOrigin, which Node took when the process began:
// the clock was another one then, and a clone has slept since.
function startClock() {
  const origin = Date.now() - performance.now();
  if (Math.abs(origin - performance.timeOrigin) < 1) return;
  const was = Object.getOwnPropertyDescriptor(Performance.prototype, 'timeOrigin');
  Object.defineProperty(Performance.prototype, 'timeOrigin', { ...was, get: () => origin });
}

function loadNative() {
  const m = { exports: {} };
  process.dlopen(m, '/unitask/lib/shim.node');
  return m.exports;
}

function waitForStart(fs) {
  fs.writeSync(CTL, 'R');
  for (;;) {
    const header = readExactly(fs, 5);
    const payload = readExactly(fs, header.readUInt32BE(0));
    switch (String.fromCharCode(header[4])) {
      case 'S':
        return payload;
      case 'W':
        warm();
        fs.writeSync(CTL, 'W');
    }
  }
}

function readExactly(fs, n) {
  const buf = Buffer.alloc(n);
  for (let off = 0; off < n; ) {
    const r = fs.readSync(CTL, buf, off, n - off, null);
    if (r === 0) process.reallyExit(125);
    off += r;
  }
  return buf;
}

// warm runs a throw-away script the whole way, so that the code it takes is
// compiled when the user's comes.
function warm() {
  const file = '/unitask/lib/warm.js';
  require(file);
  delete require.cache[file];
  process._tickCallback(); // what it left to do must not be in the user's first stack
}
