const fs = require('node:fs'), path = require('node:path'), os = require('node:os');
const { pipeline } = require('node:stream/promises'), { Transform } = require('node:stream');
const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'walk-'));
for (let i = 0; i < 20; i++) {
  fs.mkdirSync(path.join(dir, `d${i % 4}`), { recursive: true });
  fs.writeFileSync(path.join(dir, `d${i % 4}`, `f${i}.txt`), 'line\n'.repeat(i));
}
function* walk(d) {
  for (const e of fs.readdirSync(d, { withFileTypes: true })) {
    if (e.isDirectory()) yield* walk(path.join(d, e.name));
    else yield path.join(d, e.name);
  }
}
const found = [...walk(dir)];
const upper = new Transform({ transform(chunk, _, done) { done(null, String(chunk).toUpperCase()); } });
pipeline(fs.createReadStream(found.at(-1)), upper, fs.createWriteStream(path.join(dir, 'out'))).then(() => console.log(found.length, fs.statSync(path.join(dir, 'out')).size));
