
		require('sql.js')().then((SQL) => { const db = new SQL.Database(); db.run('create table t (a, b); '); const st = db.prepare('insert into t values (?, ?)'); for (let i = 0; i < 5000; i++) st.run([i, 'v' + i % 9]);
		console.log(JSON.stringify(db.exec('select b, count(*), sum(a) from t group by b order by b')), db.export().length > 50000) })