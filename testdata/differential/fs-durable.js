const fs = require('node:fs');
process.chdir(fs.mkdtempSync('/tmp/sync-'));
const { DatabaseSync } = require('node:sqlite');
const db = new DatabaseSync('q.db');
db.exec('create table t(a); insert into t values (1), (2)');
console.log(db.prepare('select sum(a) s from t').get().s);
db.exec("pragma journal_mode=wal; insert into t values (5)");
console.log(db.prepare('select sum(a) s from t').get().s); db.close();
console.log(fs.existsSync('q.db'), new DatabaseSync('q.db').prepare('select count(*) n from t').get().n);
for (const [p, f] of [['.', 'r'], ['file', 'w'], ['file', 'rs+'], ['file', 'as']]) { const d = fs.openSync(p, f); if (f !== 'r') fs.writeSync(d, 'x'); fs.fsyncSync(d); fs.fdatasyncSync(d); fs.closeSync(d); }
try { fs.fsyncSync(99) } catch (e) { console.log(e.code) }
