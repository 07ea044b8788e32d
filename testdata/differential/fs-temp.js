const fs = require('fs'), os = require('os'), path = require('path'); const d = fs.mkdtempSync(path.join(os.tmpdir(), 'd-')); const f = path.join(d, 'a.txt');
fs.writeFileSync(f, 'one\n'); fs.appendFileSync(f, 'two\n'); console.log(fs.readFileSync(f, 'utf8'), fs.statSync(f).size, fs.existsSync(d), fs.statSync(d).isDirectory());
fs.renameSync(f, f + '2'); fs.copyFileSync(f + '2', f); fs.truncateSync(f, 2); console.log(fs.readdirSync(d), fs.readFileSync(f, 'latin1')); fs.mkdirSync(path.join(d, 'x/y/z'), { recursive: true });
console.log(fs.readdirSync(d, { recursive: true }).sort()); fs.rmSync(d, { recursive: true }); console.log(fs.existsSync(d)); try { fs.readFileSync(f); } catch (e) { console.log(e.code, e.syscall, e.errno); }
