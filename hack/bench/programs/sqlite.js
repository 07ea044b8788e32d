process.removeAllListeners('warning');
const { DatabaseSync } = require('node:sqlite');
const db = new DatabaseSync(':memory:');
db.exec('CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, n REAL)');
const insert = db.prepare('INSERT INTO t (name, n) VALUES (?, ?)');
for (let i = 0; i < 1000; i++) insert.run(`row ${i}`, i / 3);
console.log(db.prepare('SELECT count(*) AS c, round(sum(n), 2) AS s FROM t WHERE name LIKE ?').get('%9%'));
