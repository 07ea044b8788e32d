// Checks the syntax of the program in the first argument with `node --check`, and runs none of it.
// node --check knows only JavaScript. For TypeScript, Node first replaces types with blanks, as in a
// run, so positions stay. esbuild converts other TypeScript syntax, JSX and decorators.
const { spawnSync } = require('child_process');
const fs = require('fs');
const modules = require('module');
const os = require('os');
const path = require('path');
const url = require('url');
const util = require('util');

const file = process.argv[2];

// kind returns the extension of the JavaScript for a TypeScript file. A .js file can be an ES module or
// CommonJS.
function kind() {
  const ext = path.extname(file);
  if (ext !== '.ts') return ext.replace('t', 'j');
  let type;
  try {
    type = JSON.parse(fs.readFileSync(modules.findPackageJSON(url.pathToFileURL(file)), 'utf8')).type;
  } catch { /* there is no package.json, or a malformed one */ }
  return { module: '.mjs', commonjs: '.cjs' }[type] ?? '.js';
}

function start(program, args) {
  const ended = spawnSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'ignore', 'pipe'], maxBuffer: 64 << 20 });
  if (ended.error) throw ended.error;
  return ended;
}

function esbuild() {
  return start('/unitask/lib/esbuild', [file, '--log-level=error', '--color=false']);
}

function check(of) {
  const { status, signal, stderr } = start(process.execPath, ['--check', of]);
  if (status && of !== file && esbuild().status === 0) return; // decorators
  process.stderr.write(stderr.replaceAll(of, file));
  if (signal) process.kill(process.pid, signal);
  process.exitCode = status;
}

function stripped() {
  process.removeAllListeners('warning'); // do not warn that the function below is new
  try {
    const text = fs.readFileSync(file, 'utf8');
    try {
      return modules.stripTypeScriptTypes(text, { mode: 'strip', sourceUrl: file });
    } catch (e) {
      if (e.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw e;
      return modules.stripTypeScriptTypes(text, { mode: 'transform', sourceUrl: file });
    }
  } catch (e) {
    // Print the error as Node does, without the stack frames of this program.
    console.error(`${util.inspect(e).split('\n    at ')[0].replace(`file://${file}`, file)}\n\nNode.js ${process.version}`);
    process.exitCode = 1;
  }
}

if (/\.[jt]sx$/.test(file)) {
  const { status, stderr } = esbuild();
  process.stderr.write(stderr);
  process.exitCode = status;
} else if (/\.[cm]?ts$/.test(file)) {
  const text = stripped();
  if (text !== undefined) {
    const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'check-'));
    const plain = path.join(dir, 'code' + kind());
    fs.writeFileSync(plain, text);
    check(plain);
  }
} else {
  check(file);
}
