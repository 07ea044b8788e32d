const fs = require('node:fs');
process.chdir(fs.mkdtempSync('/tmp/meta-')); process.umask(0o022);
const at = (p) => { const s = fs.lstatSync(p); return [(s.mode & 0o7777).toString(8), s.isDirectory() ? '' : s.nlink].join(' ') };
const code = (f) => { try { return f() } catch (e) { return e.code } };
fs.writeFileSync('a', 'x'); fs.writeFileSync('b', 'x', { mode: 0o600 }); fs.mkdirSync('d'); fs.mkdirSync('e', 0o700); fs.mkdirSync('f/g/h', { recursive: true }); fs.symlinkSync('a', 'l');
console.log(['a', 'b', 'd', 'e', 'f/g', 'l'].map(at));
fs.chmodSync('a', 0o751); fs.linkSync('a', 'hard'); console.log(at('a'), at('hard'), fs.statSync('a').ino === fs.statSync('hard').ino);
fs.writeFileSync('hard', 'more'); console.log(fs.readFileSync('a', 'utf8')); fs.unlinkSync('a'); console.log(at('hard'), fs.readFileSync('hard', 'utf8'));
fs.renameSync('b', 'bb'); console.log(at('bb')); fs.copyFileSync('bb', 'c'); console.log(at('c'));
const now = () => Date.now() - fs.statSync('d').mtimeMs < 5000, then = new Date(Date.now() - 1e6);
for (const change of [() => fs.writeFileSync('d/x', ''), () => fs.mkdirSync('d/y'), () => fs.renameSync('d/x', 'd/z'), () => fs.rmdirSync('d/y'), () => fs.unlinkSync('d/z')]) { fs.utimesSync('d', then, then); const before = now(); change(); console.log(before, now()) }
console.log(code(() => fs.accessSync('c', fs.constants.X_OK)), code(() => fs.accessSync(process.execPath, fs.constants.X_OK)));
fs.symlinkSync('nowhere', 'dangling'); fs.writeFileSync('dangling', 'through'); console.log(fs.readFileSync('nowhere', 'utf8'), fs.readdirSync('.').sort().join());
console.log(code(() => fs.writeFileSync('dangling', '', { flag: 'wx' })), code(() => process.chdir('nowhere')), code(() => fs.readdirSync('nowhere')), code(() => fs.readSync(fs.openSync('nowhere', 'r'), Buffer.alloc(1))));
const f = fs.openSync('fm', 'w', 0o640); fs.fchmodSync(f, 0o604); console.log((fs.fstatSync(f).mode & 0o777).toString(8), Number.isSafeInteger(fs.fstatSync(f).ino)); fs.closeSync(f);
