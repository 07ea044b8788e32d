import { Readable, PassThrough } from 'stream'; import { text, json, buffer } from 'stream/consumers'; import { pipeline } from 'stream/promises';
console.log(await text(Readable.from(['x', 'y'])), await json(Readable.from(['{"a":1}'])), await buffer(Readable.from([Buffer.from('q')])));
const p = new PassThrough(); setTimeout(() => p.destroy(new Error('broken')), 2); await pipeline(p, new PassThrough()).catch((e) => console.log(e.message));
console.log(await Readable.from([1, 2, 3, 4]).filter((x) => x % 2).map((x) => x * 10).toArray());
