const fs = require('node:fs');
const root = fs.mkdtempSync('/tmp/deep-'); process.chdir(root);
const t = (f) => { try { return f() } catch (e) { return e.code } };
const deep = Array(200).fill('d').join('/');
console.log(t(() => fs.mkdirSync(deep, { recursive: true }) === root + '/d' || 'made'), t(() => (fs.writeFileSync(deep + '/x', 'y'), fs.readFileSync(deep + '/x', 'utf8'))));
console.log(t(() => fs.statSync(Array(2000).fill('n').join('/'))), t(() => fs.mkdirSync(Array(3000).fill('n').join('/'))), t(() => fs.readFileSync('/tmp/' + 'x'.repeat(6000))), t(() => fs.writeFileSync('x'.repeat(256), '')), t(() => fs.readdirSync('a/'.repeat(500))), t(() => fs.accessSync('../'.repeat(700) + 'tmp')));
process.chdir(deep); console.log(process.cwd() === root + '/' + deep, t(() => fs.mkdirSync(deep, { recursive: true })) === undefined ? 'same' : 'new'); process.chdir(root);
for (let i = 0; i < 3000; i++) { fs.writeFileSync('many' + i % 7, 'x'); if (i % 3 === 0) fs.unlinkSync('many' + i % 7) }
let l = 'd'; for (let i = 0; i < 45; i++) { fs.symlinkSync((i ? 'l' + (i - 1) + '/d/..' : 'd'), 'l' + i) } console.log(t(() => fs.readdirSync('l10').length), t(() => fs.readdirSync('l44')), t(() => fs.readdirSync('l38/d').length));
fs.rmSync('d', { recursive: true }); console.log(fs.existsSync('d'));
