import fs from 'fs/promises'; import os from 'os'; import path from 'path'; const d = await fs.mkdtemp(path.join(os.tmpdir(), 'p-'));
const h = await fs.open(path.join(d, 'f'), 'w+'); await h.write('line1\nline2\n'); for await (const l of (await fs.open(path.join(d, 'f'))).readLines()) console.log(l); console.log((await h.stat()).size); await h.close();
await Promise.all(Array.from({ length: 20 }, (_, i) => fs.writeFile(path.join(d, 'n' + i), String(i)))); console.log((await fs.readdir(d)).length, (await Array.fromAsync(fs.glob(d + '/n1*'))).length); await fs.rm(d, { recursive: true });
await fs.readFile('/definitely/not/there').catch((e) => console.log(e.code, e.message));
