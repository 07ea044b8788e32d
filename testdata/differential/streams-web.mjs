const rs = new ReadableStream({ start(c) { c.enqueue('a'); c.enqueue('b'); c.close(); } });
const out = []; for await (const x of rs.pipeThrough(new TransformStream({ transform(x, c) { c.enqueue(x + x); } }))) out.push(x); console.log(out);
console.log(await new Response(new Blob(['blob']).stream().pipeThrough(new CompressionStream('gzip')).pipeThrough(new DecompressionStream('gzip'))).text());
