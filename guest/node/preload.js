// Runs in Node before the user's code, by --require. It replaces Module.runMain, which Node calls
// last before it loads the program. The replacement tells the agent (agent.c) that Node is up, and
// waits for the start. It then makes the process look as if `node main.js args` had been typed.
// Node itself loads /unitask/main, a link to the user's file, so module kinds, stack traces and
// exit paths are Node's own.
'use strict';

// From ../contract/contract.go by `go test ./guest/contract -update`.
const PRELOAD = '/unitask/lib/preload.js';
const TYPESCRIPT = '/unitask/lib/typescript.js';
const MAIN_LINK = '/unitask/main';
const TRUSTED = '/unitask/ca.pem';
const ENV_FRESH = 'UNITASK_FRESH';
const WRITABLE = '/tmp:/out:/home/user:/dev';
const HEADER_SIZE = 5;
const ENTROPY_SIZE = 64;
const EXIT_UNKNOWN = 125;
const CONTROL_READY = 'R';
const CONTROL_STARTED = 'S';
const CONTROL_REHEARSED = 'W';
// End of what is from there.

const MORE_MEMORY = 200 * 2 ** 20; // bytes: a machine with more memory rehearses everything

let beginTime; // from clockOf; undefined in a fresh process, whose time is right
let snapshot = false; // whether the machine's snapshot was taken, or comes next
let CTL; // stream to agent.c: frames in (u32 length, type, payload), letters out
const ending = { noted: false, nested: false, rehearsed: false }; // the state of quickExit

// A process that is started for one run takes its start at once, before NODE_OPTIONS and arguments
// load anything else. Its arguments may make it load this file twice.
const fresh = process.env[ENV_FRESH] !== undefined;

// Workers inherit --require, and only remove this file's traces. chdir is disabled in workers, and a
// test for that costs nothing. Loading worker_threads would take a tenth of a second under TCG.
if (!fresh) delete require.cache[__filename];
process.execArgv = process.execArgv.slice(process.execArgv.indexOf(PRELOAD) + 1);
const typescript = takeAlong(TYPESCRIPT);
if (!process.chdir.disabled) main();
else inWorker();

// takeAlong loads another file of the guest, and removes the traces of that.
function takeAlong(name) {
  try {
    return require(name);
  } finally {
    delete require.cache[name];
    module.children = [];
  }
}

// inWorker makes the workers of a program that may load TypeScript load it, too.
function inWorker() {
  let program;
  try {
    program = require('node:fs').readlinkSync(MAIN_LINK);
  } catch {
    return; // a session has no such program
  }
  if (typescript.isTyped(program)) typescript.hook();
}

function main() {
  const fs = require('node:fs');
  const native = loadNative();
  CTL = native.attach();
  // Loaded before the start because the user may need it, and loading it takes a tenth of a second.
  require('node:perf_hooks');
  if (!fresh) beginTime = clockOf(native);
  quickExit(native);
  native.rehearsing(true); // otherwise V8 would optimize Node's own code for the rehearsals

  // Node reads Module.runMain and calls the value, so this getter is in no stack trace.
  const Module = require('node:module');
  const was = Object.getOwnPropertyDescriptor(Module, 'runMain');
  Object.defineProperty(Module, 'runMain', {
    configurable: true,
    get() {
      Object.defineProperty(Module, 'runMain', was);
      if (fresh) delete require.cache[__filename];
      else wait(fs, native);
      return was.value;
    },
  });
  if (fresh) wait(fs, native);
}

function wait(fs, native) {
  const start = waitForStart(fs, native);
  take(start, fs, native);
  if (start.session) stay(native);
  if (native.nanos) native.protect(protection(start));
  fs.writeSync(CTL, CONTROL_STARTED);
  fs.closeSync(CTL);
}

// stay gives the addon to a session's driver, which is the program on Nanos, and disables quickExit.
function stay(native) {
  delete Object.getPrototypeOf(process).emit;
  Object.defineProperty(globalThis, '__unitask', { value: native, configurable: true });
}

// take applies a start to the process, in a run and in a rehearsal. Every run would have to compile
// code that rehearsals do not execute.
function take(start, fs, native) {
  begin(start, native);
  if (!fresh) adopt(start.flags ?? []);
  trust(fs, start.ca);
  if (start.env.UNITASK_TOOLS) nameTools();
  if (typescript.isTyped(start.argv[0])) typescript.hook();
}

// nameTools lets the code import unitask:tools, which the host has put into the guest.
function nameTools() {
  const tools = { url: 'file:///unitask/tools/index.mjs', format: 'module', shortCircuit: true };
  const resolve = (name, context, next) => (name === 'unitask:tools' ? tools : next(name, context));
  require('node:module').registerHooks({ resolve });
}

// adopt applies the few arguments that a running Node can still apply (node.go lists them). Other
// arguments require a fresh process.
function adopt(flags) {
  if (flags.some((flag) => /^--expose[-_]gc$/.test(flag))) {
    require('node:v8').setFlagsFromString('--expose-gc');
    const value = require('node:vm').runInNewContext('gc');
    Object.defineProperty(globalThis, 'gc', { value, writable: true, enumerable: false, configurable: true });
  }
  if (flags.includes('--no-warnings') || process.env.NODE_NO_WARNINGS === '1') process.removeAllListeners('warning');
  if (process.env.NODE_PATH) require('node:module')._initPaths();
}

// trust adds certificates to those that TLS clients trust. It writes them to the file that
// NODE_EXTRA_CA_CERTS named when Node started. Node reads that file when it first needs it, once for
// all its threads. Child processes find the file by their environment. trust also adds the
// certificates that the code's own NODE_EXTRA_CA_CERTS names, as Node does at its start.
function trust(fs, ca) {
  const own = process.env.NODE_EXTRA_CA_CERTS;
  if (!ca && !own) return;
  let text = ca ?? '';
  if (own) {
    try {
      text += '\n' + fs.readFileSync(own, 'utf8');
    } catch (e) {
      process.emitWarning(`Ignoring extra certs from \`${own}\`, load failed: ${e.message}`);
    }
  }
  fs.writeFileSync(TRUSTED, text);
  if (ca) process.env.NODE_EXTRA_CA_CERTS = TRUSTED;
}

// protection returns the code's permissions for Nanos, whose file system has no modes: pairs of
// permissions and a path. The code can't change files from the host.
function protection(start) {
  let inside = false;
  let text = '';
  for (const dir of start.readOnly ?? []) {
    inside ||= start.cwd === dir || start.cwd.startsWith(dir + '/');
    text += 'rx\0' + dir + '\0';
  }
  for (const dir of WRITABLE.split(':')) text += 'rwxc\0' + dir + '\0';
  if (!inside) text += 'rwxc\0' + start.cwd + '\0';
  return text + 'rx\0/\0';
}

// begin gives the process its arguments, environment and folder.
function begin(start, native) {
  // Refuse to run without fresh entropy, because a clone shares all its state with other clones.
  const entropy = Buffer.alloc(ENTROPY_SIZE); // not Buffer.from, which runs other code when Node's pool is used up
  if (start.entropy?.length !== 2 * ENTROPY_SIZE || entropy.write(start.entropy, 'hex') !== ENTROPY_SIZE) throw new Error('unitask: no fresh entropy in the start');
  native.seed(entropy);
  beginTime?.(start.came);
  native.rehearsing(false);
  for (const name of Object.keys(process.env)) delete process.env[name];
  Object.assign(process.env, start.env);
  process.chdir(start.cwd);
  process.argv = [process.execPath, ...start.argv];
  process.execArgv = start.flags ?? [];
  // From here on V8's flag for the heap's size applies to workers only, because this thread's heap
  // exists already. The flag would override the limits of workers.
  if (!fresh || !/max[-_]old[-_]space/.test(process.execArgv + process.env.NODE_OPTIONS)) native.workerLimits();
}

// clockOf returns a function that makes the process's time begin when its start came, because a
// clone has slept until then. This covers performance.now(), its origin, process.uptime() and the
// clocks of Workers. The function moves the milestones of Node's own start to between that moment and
// now, in their proportions.
function clockOf(native) {
  const { milestones, constants } = native.binding('performance');
  const [origin, timestamp, complete, node, v8, environment] = ['TIME_ORIGIN', 'TIME_ORIGIN_TIMESTAMP', 'BOOTSTRAP_COMPLETE', 'NODE_START', 'V8_START', 'ENVIRONMENT']
    .map((name) => constants['NODE_PERFORMANCE_MILESTONE_' + name]);
  let was; // the original milestones, in Node's form
  return (came) => {
    was ??= Float64Array.from(milestones);
    const begin = Number(came);
    const share = (Number(process.hrtime.bigint()) - begin) / (was[complete] - was[origin]);
    for (const i of [node, v8, environment, complete]) milestones[i] = Math.round(begin + (was[i] - was[origin]) * share);
    milestones[origin] = begin;
    milestones[timestamp] = native.timeOrigin(begin, milestones[node], milestones[v8]);
  };
}

// quickExit ends the process as soon as the last listener for its exit has run. Node's cleanup would
// close handles, free the heap and join threads. That takes a tenth of a second, and the machine ends
// a moment later. quickExit adds a listener just before Node emits exit, so Node calls it after the
// user's listeners. With code 0 the listener ends the process. With another code Node may still print
// an exception. So the listener only stores the code, and the addon ends the process when Node begins
// its cleanup. The addon also does so if a listener emits an event itself, because further listeners
// may follow.
function quickExit(native) {
  process.reallyExit = native.reallyExit;
  const { emit } = process;
  Object.defineProperty(Object.getPrototypeOf(process), 'emit', {
    configurable: true,
    get() {
      if (process._exiting) {
        const first = !ending.noted;
        if (first) process.on('exit', (ending.noted = noteExit.bind(null, native))); // this emits newListener
        ending.nested = !first;
      }
      return emit;
    },
    set(value) {
      Object.defineProperty(this, 'emit', { value, writable: true, enumerable: true, configurable: true });
    },
  });
}

function noteExit(native, code) {
  const now = process.exitCode ?? code;
  if (code === 0 && now === 0 && !ending.nested) native.end(ending.rehearsed);
  native.exitCode(now);
}

function loadNative() {
  return process._linkedBinding('unitask'); // addon.c has registered it
}

function waitForStart(fs, native) {
  fs.writeSync(CTL, CONTROL_READY);
  for (;;) {
    const header = readExactly(fs, HEADER_SIZE);
    const came = process.hrtime.bigint();
    const start = { ...JSON.parse(readExactly(fs, header.readUInt32BE(0)).toString()), came };
    if (!start.rehearsal) return start;
    rehearse(start, fs, native);
    fs.writeSync(CTL, CONTROL_REHEARSED);
  }
}

function readExactly(fs, n) {
  const buf = Buffer.alloc(n);
  for (let off = 0; off < n; ) {
    const r = fs.readSync(CTL, buf, off, n - off, null);
    if (r === 0) process.reallyExit(EXIT_UNKNOWN);
    off += r;
  }
  return buf;
}

// rehearse does all steps of a run with a throw-away program before the user's program comes. V8 has
// then compiled the code of these steps, and the emulator has translated it. rehearse leaves nothing
// behind that the user's program could see.
function rehearse(start, fs, native) {
  const Module = require('node:module');
  const paths = new Set(Object.keys(Module._pathCache));
  const cwd = process.cwd();
  if (require('node:os').totalmem() > MORE_MEMORY) {
    start.argv.push('more');
    // In a ready clone, a rehearsal of the network would slow simple programs down more than it
    // speeds up others.
    if (!snapshot) start.argv.push('network');
    // node:tls would start a thread that reads the certificates at once, but the run may bring some.
    native.threadless(true);
    require('node:tls');
    native.threadless(false);
  }
  take(start, fs, native);
  if (native.nanos) protection(start);
  fs.closeSync(fs.openSync(start.argv[0])); // a run closes CTL
  Module.runMain(start.argv[0]);
  if (start.argv.includes('more')) typescript.rehearse(start.cwd);
  // Finish pending work, so that it is not in the user's first stack. During a call from C++, Node
  // leaves the ticks to the caller.
  do process._tickCallback(); while (native.turn());
  process._tickCallback();
  ending.rehearsed = true;
  native.rehearseEnd();
  process.removeListener('exit', ending.noted);
  process._exiting = ending.noted = ending.nested = ending.rehearsed = false;
  for (const name of Object.keys(require.cache)) delete require.cache[name];
  for (const name of Object.keys(Module._pathCache)) if (!paths.has(name)) delete Module._pathCache[name];
  delete process.mainModule;
  process.chdir(cwd);
  for (const name of fs.readdirSync(start.cwd)) fs.unlinkSync(start.cwd + '/' + name);
  fs.rmdirSync(start.cwd);
  native.tidy(start.rehearsal === 'last');
  snapshot ||= start.rehearsal === 'last';
  native.rehearsing(true);
}
