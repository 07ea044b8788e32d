const { Readable, Transform, pipeline } = require('stream');
pipeline(Readable.from(['a', 'b', 'c']), new Transform({ transform(c, e, cb) { cb(null, String(c).toUpperCase() + '\n'); } }), process.stdout, (e) => console.error('end', e));
