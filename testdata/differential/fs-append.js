const fs = require('node:fs'), fsp = fs.promises;
(async () => {
  process.chdir(fs.mkdtempSync('/tmp/append-'));
  const a = fs.openSync('two', 'a'), b = fs.openSync('two', 'a');
  fs.writeSync(a, 'one\n'); fs.writeSync(b, 'two\n'); fs.writeSync(a, 'three\n');
  console.log(JSON.stringify(fs.readFileSync('two', 'utf8')));
  await Promise.all(Array.from({ length: 100 }, (_, i) => fsp.appendFile('many', `${String(i).padStart(5)}\n`)));
  console.log(fs.statSync('many').size, new Set(fs.readFileSync('many', 'utf8').split('\n')).size);
  fs.truncateSync('two', 0); fs.writeSync(a, 'after\n');
  console.log(JSON.stringify(fs.readFileSync('two', 'utf8')));
  fs.writeSync(a, 'at 0', 0); fs.writevSync(b, [Buffer.from('x'), Buffer.from('y')]);
  console.log(JSON.stringify(fs.readFileSync('two', 'utf8')));
  const s = fs.createWriteStream('two', { flags: 'a' }); s.write('stream '); await new Promise((r) => s.end('end', r));
  const h = await fsp.open('two', 'a+'); await h.write('plus'); console.log((await h.read(Buffer.alloc(5), 0, 5, 0)).buffer.toString()); await h.close();
  console.log(JSON.stringify(fs.readFileSync('two', 'utf8')));
})();
