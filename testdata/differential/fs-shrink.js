// A file that was made shorter, in each way there is, has zeros where it grows again.
const fs = require('node:fs');
const dir = fs.mkdtempSync('/tmp/shrink-');
const name = dir + '/file';
const full = () => fs.writeFileSync(name, Buffer.alloc(20000, 7));
const show = (how) => {
  const b = fs.readFileSync(name);
  console.log(how, b.length, b.filter((x) => x !== 0).length, b.indexOf(0), b.lastIndexOf(7));
};
const past = (flags) => {
  const fd = fs.openSync(name, flags);
  fs.writeSync(fd, 'ab', 15000);
  fs.closeSync(fd);
};

full(); fs.truncateSync(name, 100); fs.truncateSync(name, 20000); show('cut, made longer');
full(); fs.truncateSync(name, 4096); past('r+'); show('cut at a page, written behind its end');
full(); fs.truncateSync(name, 100); past('r+'); show('cut, written behind its end');
full(); past('w'); show('opened empty, written behind its end');
full();
const fd = fs.openSync(name, 'w+');
fs.ftruncateSync(fd, 20000); show('opened empty, made longer');
fs.writeSync(fd, 'x', 19999); fs.ftruncateSync(fd, 5000); fs.ftruncateSync(fd, 20000); show('by its descriptor');
fs.closeSync(fd);
fs.writeFileSync(name, 'short'); show('written anew');
fs.appendFileSync(name, 'er'); console.log(fs.readFileSync(name, 'utf8'));
fs.writeFileSync(name, ''); fs.truncateSync(name, 2 ** 25); fs.truncateSync(name, 0); show('a hole of 32 MiB');
for (const [how, f] of Object.entries({
  folder: () => fs.truncateSync('/tmp', 0),
  missing: () => fs.truncateSync('/tmp/none', 0),
  reading: () => { const r = fs.openSync(name, 'r'); try { fs.ftruncateSync(r, 0); } finally { fs.closeSync(r); } },
})) try { f(); console.log(how, 'works'); } catch (e) { console.log(how, e.code); }
fs.rmSync(dir, { recursive: true });
