import sqlite3
db = sqlite3.connect('x.db')
with db: db.execute('create table t (id integer primary key, name text, data json)'); db.executemany('insert into t (name, data) values (?, ?)', [('a', '{"x": 1}'), ('ü', '[1,2]')])
print(db.execute("select id, upper(name), json_extract(data, '$.x') from t order by id").fetchall(), db.total_changes)
db.create_function('double', 1, lambda x: 2 * x); print(db.execute('select double(21), typeof(randomblob(4)), strftime("%Y", 0, "unixepoch")').fetchone())
db.row_factory = sqlite3.Row; print(dict(db.execute('select * from t where name=:n', {'n': 'a'}).fetchone()), list(db.iterdump())[:2])
print(db.execute("create virtual table f using fts5(x)").description, sqlite3.sqlite_version_info > (3, 30))
db.execute('select * from no_such_table')
