// Runs the steps of a session in one process, as scripts that the inspector evaluates as in a
// console. const may be declared again, await is allowed anywhere, and the last expression has a
// value. Imports become awaited calls. On linux the driver has a process of its own. On Nanos it runs
// in the machine's only process, where the addon is loaded already.
'use strict';
(() => {
  const { Session } = require('node:inspector');
  const fs = require('node:fs');
  const net = require('node:net');
  const path = require('node:path');
  const util = require('node:util');
  const { Script } = require('node:vm');
  const Module = require('node:module');
  const { pathToFileURL } = require('node:url');
  const native = globalThis.__unitask; // on Nanos
  delete globalThis.__unitask;
  const compile = native?.binding('builtins').compileFunction;
  const acorn = internal('internal/deps/acorn/acorn/dist/acorn');
  const walk = internal('internal/deps/acorn/acorn-walk/dist/walk');
  process.execArgv.length = 0;
  process.argv.length = 1;

  // internal returns one of Node's internal modules. On Nanos the module must not depend on others.
  function internal(id) {
    if (!native)
      return require(id); // --expose-internals
    const made = { exports: {} };
    compile(id)(made.exports, undefined, made, process);
    return made.exports;
  }

  const base = () => path.join(process.cwd(), '[session]');
  const own = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  const requireHere = (id) => Module.createRequire(base())(id);
  for (const key of ['resolve', 'cache', 'extensions', 'main'])
    Object.defineProperty(requireHere, key, { get: () => Module.createRequire(base())[key] });
  own('require', requireHere);
  own('module', { exports: {} });
  own('exports', module.exports);
  own('__filename', '[session]');
  Object.defineProperty(globalThis, '__dirname', { get: () => process.cwd(), configurable: true });
  const importing = '__unitask_import', metadata = '__unitask_meta';
  own(importing, (id, options) => import(/^\.{0,2}\//.test(id) ? pathToFileURL(path.resolve(id)).href : id.includes(':') ? id : found(id), options));
  Object.defineProperty(globalThis, metadata, { get: () => ({ url: pathToFileURL(base()).href, dirname: process.cwd(), filename: base(), resolve: (id) => pathToFileURL(requireHere.resolve(id)).href }) });

  // found returns a package's path, searched from the working directory.
  function found(id) {
    if (Module.isBuiltin(id))
      return id;
    const at = requireHere.resolve(id);
    return path.isAbsolute(at) ? pathToFileURL(at).href : at;
  }

  // rewritten returns the code with its imports and exports converted for a script.
  function rewritten(code) {
    let tree;
    const options = { ecmaVersion: 'latest', allowAwaitOutsideFunction: true, allowReturnOutsideFunction: false, allowHashBang: true };
    try {
      tree = acorn.parse(code, { ...options, sourceType: 'module' });
    } catch {
      try {
        tree = acorn.parse(code, { ...options, sourceType: 'script' });
      } catch {
        if (/^\s*\{[\s\S]*\}\s*$/.test(code))
          return code;
        // In TypeScript, remove the types, or convert enums and namespaces, too.
        for (const mode of ['strip', 'transform']) {
          try {
            const js = Module.stripTypeScriptTypes?.(code, { mode });
            if (js !== undefined && js !== code)
              return rewritten(js);
          } catch {}
        }
        return code;  // V8 will report the error
      }
    }
    const changes = [];
    const put = (from, to, text) => changes.push([from, to, text + '\n'.repeat(code.slice(from, to).split('\n').length - 1)]);
    const quoted = (node) => JSON.stringify(node.value);
    for (const node of tree.body) {
      if (node.type === 'ImportDeclaration') {
        const call = `await ${importing}(${quoted(node.source)}${node.attributes?.length ? `, { with: { ${node.attributes.map((a) => `${JSON.stringify(a.key.name ?? a.key.value)}: ${quoted(a.value)}`).join(', ')} } }` : ''})`;
        const all = node.specifiers.find((s) => s.type === 'ImportNamespaceSpecifier');
        const names = node.specifiers.filter((s) => s !== all).map((s) => `${s.type === 'ImportDefaultSpecifier' ? 'default' : s.imported.name ?? JSON.stringify(s.imported.value)}: ${s.local.name}`);
        let text = node.specifiers.length === 0 ? `${call};` : '';
        if (all)
          text += `const ${all.local.name} = ${call};`;
        if (names.length)
          text += `const { ${names.join(', ')} } = ${all ? all.local.name : call};`;
        put(node.start, node.end, text);
      } else if (node.type === 'ExportNamedDeclaration' && node.declaration) {
        put(node.start, node.declaration.start, '');
      } else if (node.type === 'ExportNamedDeclaration' || node.type === 'ExportAllDeclaration') {
        put(node.start, node.end, ';');
      } else if (node.type === 'ExportDefaultDeclaration') {
        put(node.start, node.declaration.start, node.declaration.id ? '' : '(');
        if (!node.declaration.id)
          put(node.declaration.end, node.end, ');');
      }
    }
    walk.simple(tree, {
      ImportExpression: (node) => changes.push([node.start, node.start + 6, importing]),
      MetaProperty: (node) => node.meta.name === 'import' && changes.push([node.start, node.end, metadata]),
    });
    for (const [from, to, text] of changes.sort((a, b) => b[0] - a[0]))
      code = code.slice(0, from) + text + code.slice(to);
    return code;
  }

  const inspector = new Session();
  inspector.connect();
  const post = (method, params) => new Promise((done) => inspector.post(method, params, (error, result) => done(error ? { error } : result)));
  let kept;
  own('__unitask_keep', (value) => { kept = value; });

  // valueOf returns a list with the actual value that the inspector describes. Without the list, await
  // would resolve a value that is a promise.
  async function valueOf(result) {
    if (result.objectId === undefined)
      return [result.unserializableValue === undefined ? result.value : result.type === 'bigint' ? BigInt(result.unserializableValue.slice(0, -1)) : Number(result.unserializableValue)];
    kept = undefined;
    await post('Runtime.callFunctionOn', { objectId: result.objectId, functionDeclaration: 'function () { __unitask_keep(this) }' });
    const value = kept;
    kept = undefined;
    return [typeof value === 'object' && result.type === 'symbol' ? value.valueOf() : value];
  }

  // remember makes the last value the value of _, until the code assigns _ itself.
  let last;
  function remember(value) {
    last = value;
    try {
      if (!Object.hasOwn(globalThis, '_'))
        Object.defineProperty(globalThis, '_', { get: () => last, set: (mine) => own('_', mine), configurable: true });
    } catch {}  // the code has forbidden new properties
  }

  const most = 60 << 10;
  const shown = (value) => {
    if (value === undefined)
      return '';
    return typeof value === 'string' ? util.inspect(value, { maxStringLength: most }) : util.inspect(value, { maxArrayLength: 100, maxStringLength: 10000 });
  };

  // print writes to standard error. It waits while the pipe is full, and gives up without a reader.
  function print(text) {
    const all = Buffer.from(text);
    for (let at = 0; at < all.length;) {
      try {
        at += fs.writeSync(2, all, at);
      } catch (error) {
        if (error.code !== 'EAGAIN')
          return;
        Atomics.wait(tick, 0, 0, 5);
      }
    }
  }
  const tick = new Int32Array(new SharedArrayBuffer(4));

  // encoded returns a value as the host expects it: cut to a limited number of bytes, and without NULs.
  function encoded(text) {
    const all = Buffer.from(text.slice(0, most + 1).replaceAll('\0', '\\x00'));
    if (all.length <= most)
      return all;
    let end = most;
    while ((all[end] & 0xc0) === 0x80)
      end--;
    return Buffer.concat([all.subarray(0, end), Buffer.from('…')]);
  }

  // told prints an exception as Node does, without the frames of this file. Code may have replaced the
  // formatting, which may then fail.
  function told(error) {
    let text = 'exception';
    try {
      text = util.inspect(error);
    } catch {}
    if (error !== null && typeof error === 'object' && typeof error.stack === 'string')
      text = text.replace(/\n +at (?:Session\.post \(node:inspector:.*(?:\n +at .*)*|new Promise \(<anonymous>\).*|.*\/driver\.js:.*)/g, (cut) => cut.endsWith(' {') ? ' {' : '');  // ' {': the error's properties follow
    print(`Uncaught ${text}\n`);
  }

  let under;  // the running step; its function answer answers it once
  function interrupt() {
    if (!under?.step)
      return;
    print('Uncaught Error: the step was interrupted\n');
    under.answer(130, '');
  }
  process.on('SIGINT', interrupt);
  let late;
  process.on('uncaughtException', (error) => {
    told(error);
    late = true;
  });

  // Math.random of this process. V8 seeds its own generator only once, so a fork replaces draw. Code
  // may have stored Math.random, so that function stays the same.
  let draw = Math.random;
  Object.defineProperty(Math, 'random', { value: { random() { return draw(); } }.random, writable: true, configurable: true, enumerable: false });

  // drawing returns a generator (sfc32, of PractRand) of numbers with 53 bits like V8's. A new context
  // with a new generator of V8 would take several times as long as the rest of a fork.
  function drawing([a, b, c]) {
    let counter = 1;
    const next = () => {
      const t = (a + b + counter++) | 0;
      a = b ^ (b >>> 9);
      b = (c + (c << 3)) | 0;
      c = ((c << 21 | c >>> 11) + t) | 0;
      return t >>> 0;
    };
    for (let i = 0; i < 12; i++)
      next();
    return () => ((next() >>> 5) * 2 ** 26 + (next() >>> 6)) / 2 ** 53;
  }

  // addon reseeds OpenSSL. Loading it takes as long as the rest of a fork, so the driver loads it in
  // advance, after the answer to the first step. It can be loaded only once.
  let addon = native;
  function load() {
    if (addon !== undefined)
      return;
    const module = { exports: {} };
    process.dlopen(module, '/unitask/lib/shim.node');
    addon = module.exports;
  }
  function loadSoon() {
    setTimeout(() => {
      try {
        load();
      } catch {}  // a fork will report the error
    }, 500).unref();
  }

  // renew reseeds the random numbers of a fork.
  function renew(seed) {
    load();
    const bytes = Buffer.from(Uint8Array.from(Buffer.from(seed, 'hex')).buffer);
    addon.renew(bytes);
    draw = drawing(new Uint32Array(bytes.buffer, 0, 3));
    if (!process.moduleLoadList.includes('NativeModule internal/crypto/random'))
      return;
    const { randomInt, randomUUID } = require(native ? 'node:crypto' : 'internal/crypto/random');
    for (let i = 0; i < 1024; i++) {  // discard what Node has drawn in advance: 1024 numbers and 128 UUIDs
      randomInt(2);
      if (i < 128)
        randomUUID();
    }
  }

  // parses reports whether V8 can parse code. It compiles the code, and does not run it.
  function parses(code) {
    try {
      return new Script(`async () => {${code.replace(/^#!.*/, '')}\n}`) !== undefined;
    } catch {
      return false;
    }
  }

  // evaluate runs code. Parsing takes several times as long as the rest, so evaluate first parses only
  // code that may have imports or exports. Other code that V8 can't parse may be TypeScript. It has
  // not begun to run, so evaluate can convert it and run the result.
  let steps = 0;
  async function evaluate(limit, code) {
    if (code) // the host tests with empty code whether the driver runs
      steps++;
    const name = `step-${steps}`;
    const run = (text) => post('Runtime.evaluate', { expression: `${text}\n//# sourceURL=${name}`, replMode: true, awaitPromise: true, timeout: limit, objectGroup: 'step' });
    if (/import|export/.test(code))
      return run(rewritten(code));
    const evaluated = await run(code);
    if (evaluated.exceptionDetails?.exception?.className !== 'SyntaxError' || parses(code))
      return evaluated;
    const js = rewritten(code);
    return js === code ? evaluated : run(js);
  }

  async function step(limit, code, mine) {
    late = false;
    const evaluated = await evaluate(limit, code);
    if (under !== mine)
      return;
    if (evaluated.error)
      return interrupt();
    try {
      if (evaluated.exceptionDetails) {
        told((await valueOf(evaluated.exceptionDetails.exception))[0]);
        return mine.answer(1, '');
      }
      let [value] = await valueOf(evaluated.result);
      if (util.types.isPromise(value)) {
        value = await value.then((v) => [v], (error) => { if (under === mine) told(error); return null; });
        if (under !== mine)
          return;
        if (value === null)
          return mine.answer(1, '');
        value = value[0];
      }
      if (value !== undefined)
        remember(value);
      mine.answer(late ? 1 : (process.exitCode ?? 0) & 255, shown(value));
    } finally {
      if (evaluated.exceptionDetails || evaluated.result?.objectId)
        inspector.post('Runtime.releaseObjectGroup', { objectGroup: 'step' });
    }
  }

  // begin begins a step, or a fork's reseeding. The first event that ends the work answers it, because
  // an interrupt may cut off all code that would follow.
  function begin(head, code) {
    const mine = under = {
      step: head !== 'fork',
      answer(status, value) {
        if (under !== mine)
          return;
        const text = encoded(value);
        under = undefined;
        process.exitCode = undefined;
        native?.stepping(false);
        send(Buffer.concat([Buffer.from(`${status}\0`), text, Buffer.of(0)]));
        if (!native && steps === 1)
          loadSoon();
        if (queue.length)
          setImmediate(next);
      },
    };
    native?.stepping(true);
    const done = mine.step ? step(Number(head), code, mine) : new Promise((done) => done(renew(code))).then(() => mine.answer(0, ''));
    done.catch((error) => {
      if (under !== mine)
        return;
      told(error);
      mine.answer(1, '');
    });
  }

  let box, send;
  if (native) {
    const [from, to] = native.session(interrupt);
    box = new net.Socket({ fd: from, writable: false });
    send = (text) => fs.writeSync(to, text);
    // There is no other process, so an exit only ends the step's JavaScript. It leaves the async ids of
    // Node's own functions behind. So a mismatch of async ids must be no error.
    const { async_hook_fields: fields, constants } = native.binding('async_wrap');
    fields[constants.kCheck] = 0;
    process.reallyExit = (code) => {
      process._exiting = false;
      under?.answer(code & 255, '');
      native.terminate();
      for (;;);
    };
  } else {
    box = new net.Socket({ fd: 3 });
    send = (text) => box.write(text);
  }
  const queue = []; // the host sends more after an answer, which code may have forged while its step runs
  const next = () => !under && queue.length && begin(...queue.shift());
  let waiting = [], ends = 0;
  box.on('data', (chunk) => {
    waiting.push(chunk);
    for (let at = chunk.indexOf(0); at >= 0; at = chunk.indexOf(0, at + 1))
      ends++;
    if (ends < 2)
      return;
    let all = Buffer.concat(waiting);
    for (; ends >= 2; ends -= 2) {
      const first = all.indexOf(0), second = all.indexOf(0, first + 1);
      queue.push([all.toString('latin1', 0, first), all.toString('utf8', first + 1, second)]);
      all = all.subarray(second + 1);
    }
    waiting = [Buffer.from(all)];
    next();
  });
  box.on('end', () => process.exit(0));
})();
