const fs = require('fs'); const b = Buffer.alloc(500000, 'z'); let off = 0; while (off < b.length) { try { off += fs.writeSync(1, b, off); } catch (e) { if (e.code !== 'EAGAIN') throw e; } }
