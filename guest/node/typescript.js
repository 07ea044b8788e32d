// Makes Node load JSX, and TypeScript that is more than JavaScript with types, in this process.
// Node itself replaces types with blanks, and converts enums, namespaces and parameter properties.
// If Node's result would differ from tsc's, or Node has no result, a process of esbuild converts the
// file. Child processes of Node that run TypeScript get this file by --require.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const Module = require('node:module');

// From ../contract/contract.go by `go test ./guest/contract -update`.
const ESBUILD = '/unitask/lib/esbuild';
// End of what is from there.

const TYPED = /\.(?:[cm]?ts|[jt]sx)$/;
const TYPES = ['.ts', '.cts', '.mts', '.tsx', '.jsx'];
const JSX = /\.[jt]sx$/;
const BUNDLED = /[\\/]node_modules[\\/]/;
const UNSUPPORTED = 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX';
const NOT_FOUND = ['ERR_MODULE_NOT_FOUND', 'MODULE_NOT_FOUND', 'ERR_UNSUPPORTED_DIR_IMPORT'];
const ENDINGS = ['.ts', '.tsx', '.mts', '.cts', '.js', '.jsx', '.mjs', '.cjs', '.json'];
// Imports have the extension of the converted file, and these are its possible sources.
const WRITTEN_AS = { '.js': ['.ts', '.tsx'], '.jsx': ['.tsx'], '.mjs': ['.mts'], '.cjs': ['.cts'] };
const PLAIN = { typescript: undefined, 'commonjs-typescript': 'commonjs', 'module-typescript': 'module' };
const MOST = 64 << 20; // bytes of one converted file

const settings = new Map(); // from a folder to its tsconfig.json; undefined if there is none
let hooks; // registered, or undefined
let passing = false;

// Only passOn starts a process with this file by --require.
if (process.execArgv.includes(__filename)) hook();

module.exports = { hook, isTyped, rehearse };

// isTyped reports whether a program may load TypeScript. The program is TypeScript, its folder has
// TypeScript, or its folder or one above has a tsconfig.json.
function isTyped(program) {
  if (TYPES.includes(path.extname(program))) return true; // V8 would compile a regular expression in each run
  for (let dir = path.dirname(program), of; dir !== of; of = dir, dir = path.dirname(dir)) {
    if (fs.existsSync(path.join(dir, 'tsconfig.json'))) return true;
  }
  try {
    return fs.readdirSync(path.dirname(program)).some((name) => TYPES.includes(path.extname(name)) && !/\.d\.[cm]?ts$/.test(name));
  } catch {
    return false;
  }
}

// hook makes Node call load and resolve for each module.
function hook() {
  hooks ??= Module.registerHooks({ resolve, load });
}

// rehearse loads a TypeScript program in a folder, as a run does. The caller removes the folder.
function rehearse(dir) {
  fs.writeFileSync(path.join(dir, 'types.ts'), "import { join } from 'node:path';\ninterface P { x: number; y?: string }\nconst p: P = { x: 1 };\nexport default [join('a', 'b'), p as P];\n");
  isTyped(path.join(dir, 'types.ts'));
  hook();
  // A rehearsal with a second file, or with plain code, would take longer (TestLeasedMachine).
  Module.createRequire(path.join(dir, 'code.js'))('./types.ts');
  hooks.deregister();
  hooks = undefined;
  settings.clear();
}

// passOn makes child processes of Node that run TypeScript load this file first.
function passOn() {
  if (passing) return;
  passing = true; // before require calls resolve
  const { prototype } = require('node:child_process').ChildProcess;
  const { spawn } = prototype;
  prototype.spawn = function (options) {
    const { file, args } = options;
    if (file === process.execPath && args?.some((arg) => TYPED.test(arg)) && !args.includes(__filename)) {
      options = { ...options, args: [args[0], '--require', __filename, ...args.slice(1)] };
    }
    return Reflect.apply(spawn, this, [options]);
  };
}

// resolve finds modules that tsc finds and Node does not. Their names lack an extension, have the
// extension of the JavaScript, or match the paths of tsconfig.json.
function resolve(specifier, context, next) {
  const { parentURL } = context;
  if (/^(?:node:)?(?:child_process|cluster)$/.test(specifier)) passOn();
  const relative = /^\.{0,2}\/|^\.\.?$/.test(specifier);
  const inside = parentURL?.startsWith('file:') && !BUNDLED.test(parentURL);
  if (!inside || !relative && (/^[a-z]+:/.test(specifier) || Module.isBuiltin(specifier))) return next(specifier, context);
  const { fileURLToPath, pathToFileURL } = require('node:url');
  const from = path.dirname(fileURLToPath(parentURL));
  const at = (file) => ({ url: pathToFileURL(file).href, shortCircuit: true, ...attributes(file, context) });
  if (!relative) {
    for (const file of mapped(specifier, from)) {
      const found = locate(file);
      if (found) return at(found);
    }
  }
  try {
    const found = next(specifier, context);
    return { ...found, ...attributes(found.url, context) };
  } catch (e) {
    const meant = relative ? path.resolve(from, specifier) : e.url && fileURLToPath(e.url); // e.url is in a package
    const found = meant && NOT_FOUND.includes(e.code) && locate(meant);
    if (!found) throw e;
    return at(found);
  }
}

// attributes returns the attributes that an import of JSON lacks, because tsc does not require them.
function attributes(name, { conditions, importAttributes, parentURL }) {
  const lacks = name.endsWith('.json') && TYPED.test(parentURL) && conditions?.includes?.('import') && !importAttributes?.type;
  return lacks && { importAttributes: { ...importAttributes, type: 'json' } };
}

// locate returns the file that a module's path means; undefined if there is no such file.
function locate(name) {
  const isFile = (file) => {
    try {
      return fs.statSync(file, { throwIfNoEntry: false })?.isFile();
    } catch {
      return false; // not a possible name, or unreadable
    }
  };
  const ext = path.extname(name);
  const all = [name, ...(WRITTEN_AS[ext] ?? []).map((as) => name.slice(0, -ext.length) + as)];
  for (const stem of [name, path.join(name, 'index')]) all.push(...ENDINGS.map((end) => stem + end));
  return all.find(isFile);
}

// mapped returns the files to which the paths and the baseUrl of tsconfig.json map a name.
function mapped(specifier, from) {
  const { paths, base, baseUrl } = settingsOf(from) ?? {};
  const files = [];
  let best = -1; // length of the longest matching prefix
  for (const [pattern, targets] of paths ?? []) {
    const [before, after] = pattern.split('*');
    const star = after !== undefined;
    const fits = star ? specifier.length >= before.length + after.length && specifier.startsWith(before) && specifier.endsWith(after) : specifier === pattern;
    const rank = star ? before.length : Infinity;
    if (!fits || rank <= best) continue;
    best = rank;
    const middle = star ? specifier.slice(before.length, specifier.length - after.length) : '';
    files.splice(0, files.length, ...targets.map((target) => path.resolve(base, target.replace('*', () => middle))));
  }
  if (baseUrl) files.push(path.resolve(baseUrl, specifier));
  return files;
}

// settingsOf returns the compilerOptions of the nearest tsconfig.json, and the folders that its paths
// are relative to.
function settingsOf(dir) {
  if (settings.has(dir)) return settings.get(dir);
  const up = path.dirname(dir);
  const found = readSettings(path.join(dir, 'tsconfig.json')) ?? (up === dir ? undefined : settingsOf(up));
  settings.set(dir, found);
  return found;
}

// readSettings reads a tsconfig.json and the files that it extends, each once. It ignores values of
// the wrong type.
function readSettings(file, read = new Map()) {
  if (read.has(file)) return read.get(file); // undefined while the file is being read, so none extends itself
  read.set(file, undefined);
  let config;
  try {
    config = parseSettings(fs.readFileSync(file, 'utf8'));
  } catch (e) {
    return e instanceof SyntaxError ? {} : undefined; // esbuild reports the error
  }
  const dir = path.dirname(file);
  const all = {};
  for (const of of [config?.extends ?? []].flat()) {
    const base = typeof of === 'string' && locateSettings(of, dir);
    if (base) Object.assign(all, readSettings(base, read));
  }
  const { jsx, baseUrl, paths } = config?.compilerOptions ?? {};
  if (typeof jsx === 'string') all.jsx = jsx;
  if (typeof baseUrl === 'string') all.baseUrl = path.resolve(dir, baseUrl);
  if (paths && typeof paths === 'object') {
    all.paths = Object.entries(paths).filter(([, to]) => Array.isArray(to)).map(([from, to]) => [from, to.filter((one) => typeof one === 'string')]);
    all.base = all.baseUrl ?? dir;
  }
  read.set(file, all);
  return all;
}

// parseSettings parses JSON with comments and trailing commas.
function parseSettings(text) {
  const parts = [];
  let comma = -1; // index in parts of the last comma, until the text after it is known
  for (const [part] of text.replace(/^\uFEFF/, '').matchAll(/"[^"\\]*(?:\\[^][^"\\]*)*"?|\/\/.*|\/\*(?:[^]*?\*\/|[^]*)|,|[^",/]+|\//g)) {
    const comment = /^\/[/*]/.test(part);
    if (part === ',') comma = parts.length;
    else if (!comment && /\S/.test(part)) {
      if (comma >= 0 && /^\s*[\]}]/.test(part)) parts[comma] = '';
      comma = -1;
    }
    parts.push(comment ? ' ' : part);
  }
  return JSON.parse(parts.join(''));
}

// locateSettings returns the file that the value of extends names: a path, or a file in a package.
function locateSettings(name, dir) {
  const { existsSync } = fs;
  if (/^\.{0,2}\//.test(name)) return [path.resolve(dir, name), path.resolve(dir, name) + '.json'].find(existsSync);
  for (const of of [name, name + '.json', name + '/tsconfig.json']) {
    try {
      const found = Module.createRequire(path.join(dir, 'x.js')).resolve(of);
      if (found.endsWith('.json')) return found;
    } catch { /* try the next name */ }
  }
  return undefined;
}

function load(url, context, next) {
  const name = url.replace(/[?#].*/s, '');
  if (!TYPED.test(name) || !name.startsWith('file:')) return next(url, context);
  const file = require('node:url').fileURLToPath(name);
  if (JSX.test(name) || BUNDLED.test(name)) { // Node converts neither
    const text = fs.readFileSync(file, 'utf8');
    const bare = withoutTexts(text);
    const format = packageKind(file) ?? (isModule(bare) && !wantsCommonJS(bare) ? 'module' : 'commonjs');
    return { source: esbuild(file, format, text), format, shortCircuit: true };
  }
  let loaded;
  try {
    loaded = next(url, context);
  } catch (e) { // for import, Node already converts the file to determine its kind
    if (e.code !== UNSUPPORTED) throw e;
    loaded = { format: 'typescript' };
  }
  if (!Object.hasOwn(PLAIN, loaded.format)) return loaded;
  const text = String(loaded.source ?? fs.readFileSync(file));
  const made = javaScript(text, file);
  if (!made) return loaded; // let Node report the error
  const kind = PLAIN[loaded.format];
  const other = otherProgram(made, kind, file, text);
  if (other) return { ...other, shortCircuit: true };
  return { ...loaded, source: made.source, format: loaded.source ? kind : packageKind(file) ?? kindOf(made.source), shortCircuit: true };
}

// javaScript returns Node's conversion of a text; undefined if Node can't convert it.
function javaScript(text, file) {
  const { emitWarning } = process;
  process.emitWarning = () => {}; // do not warn that the function below is new
  try {
    return { source: Module.stripTypeScriptTypes(text, { mode: 'strip' }) };
  } catch (e) {
    if (e.code !== UNSUPPORTED) return undefined;
    mapSources();
    return { source: Module.stripTypeScriptTypes(text, { mode: 'transform', sourceMap: true, sourceUrl: file }), transformed: true };
  } finally {
    process.emitWarning = emitWarning;
  }
}

// otherProgram returns esbuild's conversion if Node's would differ from tsc's; otherwise undefined.
// The conversions differ for these reasons:
//
//   - V8 doesn't know decorators and accessors.
//   - tsc leaves out an import of a type, because nothing uses it as a value.
//   - A CommonJS package has imports or exports, or a file has them beside require or __dirname.
//   - A file exports imported names, which may be types.
//   - tsconfig.json may change the order of parameter properties and fields.
function otherProgram({ source, transformed }, kind, file, text) {
  const bare = withoutTexts(source);
  const module = isModule(bare);
  const common = module && (kind === 'commonjs' || (wantsCommonJS(bare) || passesOn(bare)) && packageKind(file) !== 'module');
  const unknown = /(?:^|[\s(,])@[A-Za-z_$]|\baccessor[ \t]+[\w#$[]/m.test(bare);
  const fields = transformed && /\bclass\b/.test(bare) && settingsOf(path.dirname(file));
  const types = module ? imports(source).filter((one) => isUnused(one, bare) || isType(one, file)) : [];
  if (!common && !unknown && !fields && types.length === 0) return undefined;
  const format = common || !module && kind !== 'module' ? 'commonjs' : 'module';
  try {
    return { source: esbuild(file, format, text), format };
  } catch (e) {
    if (e.code !== undefined) return undefined; // let Node report the error
    if (unknown || kind === 'commonjs' && common) fail(file, e);
    return types.length > 0 ? { source: withoutImports(source, types), format: 'module' } : undefined;
  }
}

// withoutTexts returns a program without its strings and comments.
function withoutTexts(source) {
  return source.replace(/'(?:[^'\\\n]|\\[^])*'|"(?:[^"\\\n]|\\[^])*"|\/\/.*|\/\*[^]*?\*\//g, (all) => all[0] === '/' ? '' : '""');
}

function isModule(bare) {
  return /^[ \t]*(?:import[\s{*"]|export[\s{*=])|\bimport\.meta\b|;[ \t]*(?:import|export)[\s{*]/m.test(bare);
}

// wantsCommonJS reports whether a program uses features of CommonJS, and none of ES modules.
function wantsCommonJS(bare) {
  if (/\bimport\.meta\b|\bcreateRequire\b|^(?:const|let|var)?[^\n(){]*\bawait\b/m.test(bare)) return false;
  const given = /(?<![.\w$])(?:require(?=\s*[.(])|__dirname\b|__filename\b|module(?=\.(?:exports|id|parent|paths|children)\b)|exports(?=\.))/.test(bare);
  return given && !/\b(?:const|let|var|function)\s+(?:require|__dirname|__filename|module|exports)\b/.test(bare) || /^\s*import\s+[\w$]+\s*=\s*require|^\s*export\s*=/m.test(bare);
}

const IMPORT = /^[ \t]*import\s+([\w$\s,{}*]+?)\s*from\s*(['"])([^'"\n]*)\2/gm;

// imports lists a program's imports: the name in the program (here), the name in the other module
// (there), and that module (from).
function imports(source) {
  const all = [];
  const code = inCode(source);
  for (const { 0: whole, 1: clause, 3: from, index } of source.matchAll(IMPORT)) {
    if (!code(index, whole)) continue;
    for (const part of clause.split(/[{},]/)) {
      const [there, here = there] = part.trim().split(/\s+as\s+/);
      if (/^[\w$]+$/.test(here)) all.push({ here, there, from });
    }
  }
  return all;
}

// inCode tests whether an index of a program is outside comments and templates.
function inCode(source) {
  const code = source.replace(/'(?:[^'\\\n]|\\[^])*'|"(?:[^"\\\n]|\\[^])*"|`(?:[^`\\]|\\[^])*`|\/\/.*|\/\*[^]*?\*\//g, (all) => /^['"]/.test(all) ? all : ' '.repeat(all.length));
  return (index, text) => code.startsWith(text, index);
}

// isUnused reports whether a program without types never uses an imported name.
function isUnused({ here }, bare) {
  return bare.match(new RegExp(`(?<![\\w$])${here.replaceAll('$', '\\$')}(?![\\w$])`, 'g')).length === 1;
}

// isType reports whether the imported file declares a type by the imported name.
function isType({ there, from }, file) {
  const dir = path.dirname(file);
  const found = (/^\.{1,2}(?:\/|$)/.test(from) ? [path.resolve(dir, from)] : mapped(from, dir)).map(locate).find(Boolean);
  if (!found || !TYPED.test(found)) return false;
  const text = fs.readFileSync(found, 'utf8');
  const declares = (by) => new RegExp(`\\b(?:${by})\\s+${there.replaceAll('$', '\\$')}(?![\\w$])`).test(text);
  return declares('interface|type') && !declares('class|function\\*?|const|let|var|enum|namespace');
}

// withoutImports returns a program without the imports of some names, as tsc would write it. Line
// numbers stay the same.
function withoutImports(source, names) {
  const gone = names.map(({ here }) => here);
  const stays = (part) => part.trim() && !gone.includes(part.trim().split(/\s+as\s+/).pop());
  const code = inCode(source);
  return source.replace(IMPORT, (all, clause, quote, from, index) => {
    if (!code(index, all) || !clause.split(/[{},]/).some((part) => part.trim() && !stays(part))) return all;
    const [, outer, inner] = /^([^{]*)(?:\{([^}]*)\})?/.exec(clause);
    const parts = outer.split(',').filter(stays);
    const inside = (inner ?? '').split(',').filter(stays);
    if (inside.length > 0) parts.push(`{${inside.join(',')}}`);
    const lines = '\n'.repeat(all.split('\n').length - 1);
    return parts.length === 0 ? lines : `import ${parts.join(',').replaceAll('\n', ' ')} from ${quote}${from}${quote}${lines}`;
  });
}

// passesOn reports whether a program exports an imported name, which may be a type.
function passesOn(bare) {
  const names = imports(bare).map(({ here }) => here);
  return [...bare.matchAll(/^[ \t]*export\s*\{([^}]*)\}(\s*from\b)?/gm)].some(([, list, from]) => from ||
    list.split(',').some((part) => names.includes(part.trim().split(/\s/)[0])));
}

// packageKind returns the module kind that a file's name or its package.json says; undefined if both
// say none.
function packageKind(file) {
  if (/\.[cm]ts$/.test(file)) return file.endsWith('.mts') ? 'module' : 'commonjs';
  try {
    const { type } = JSON.parse(fs.readFileSync(Module.findPackageJSON(require('node:url').pathToFileURL(file)), 'utf8'));
    return ['module', 'commonjs'].find((kind) => kind === type);
  } catch {
    return undefined;
  }
}

// kindOf returns the kind of a module whose name and package.json say none.
function kindOf(source) {
  try {
    require('node:vm').compileFunction(source, ['exports', 'require', 'module', '__filename', '__dirname']);
    return 'commonjs';
  } catch {
    return 'module';
  }
}

// mapSources makes stack traces show lines of the TypeScript.
function mapSources() {
  Module.setSourceMapsSupport(true, { nodeModules: false, generatedCode: false });
}

// esbuild returns esbuild's conversion of a file with the nearest tsconfig.json. Only errors in the
// file's content have a code.
function esbuild(file, format, text) {
  const args = ['./' + path.basename(file), `--format=${format === 'module' ? 'esm' : 'cjs'}`, ...options(file, text), '--platform=node', '--target=node24',
    '--charset=utf8', '--sourcemap=inline', '--sources-content=false', '--log-level=error', '--color=false'];
  const { status, stdout, stderr, error } = require('node:child_process').spawnSync(ESBUILD, args,
    { cwd: path.dirname(file), encoding: 'utf8', env: {}, maxBuffer: MOST, stdio: ['ignore', 'pipe', 'pipe'] });
  if (error) {
    fail(file, new Error(`${file} can only become JavaScript by another program, which does not start here (${error.code ?? error.message}). ` +
      'It needs kernel = "linux".'));
  }
  if (status !== 0) fail(file, Object.assign(new SyntaxError(stderr.trim()), { code: 'ERR_INVALID_TYPESCRIPT_SYNTAX' }));
  mapSources();
  return stdout;
}

// options returns arguments for esbuild that tsconfig.json does not determine. Programs that mention
// React get React's classic form. Programs that use the first form of decorators get that.
function options(file, text) {
  const config = settingsOf(path.dirname(file));
  const list = [];
  const named = /(?<![.\w$])React\b|@jsx\b/.test(text);
  if (JSX.test(file) && (config?.jsx ? /^(?:preserve|react-native)$/.test(config.jsx) : !named)) list.push('--jsx=automatic');
  if (!config && /\bPropertyDescriptor\b|[(,]\s*@[\w$]+\(/.test(text)) list.push('--tsconfig-raw={"compilerOptions":{"experimentalDecorators":true}}');
  return list;
}

// fail throws an error whose message shows nothing of this file.
function fail(file, error) {
  error.stack = `${error.name}: ${error.message}\n    at ${file}`;
  require('node:vm').compileFunction('throw error', ['error'], { filename: file })(error);
}
