# SQLite and pandas, both ways.
import sqlite3
import pandas as pd

db = sqlite3.connect('/tmp/shop.db')
db.executescript('''
create table customer (id integer primary key, name text not null, city text);
create table purchase (id integer primary key, customer int references customer, amount real, at text);
insert into customer values (1, 'Ada', 'London'), (2, 'Grace', 'New York'), (3, 'Edsger', 'Austin');
insert into purchase (customer, amount, at) values (1, 10.5, '2026-01-03'), (1, 4.5, '2026-02-01'), (2, 99.0, '2026-02-14'), (2, 1, '2026-02-15');
''')
df = pd.read_sql('''select name, city, count(p.id) as n, coalesce(sum(amount), 0) as total
  from customer c left join purchase p on p.customer = c.id group by c.id order by total desc''', db)
print(df.to_string(index=False))
df['share'] = (df['total'] / df['total'].sum()).round(3)
df.to_sql('summary', db, index=False)
print(db.execute('select name, share from summary where share > 0').fetchall())
by_month = pd.read_sql('select * from purchase', db, parse_dates=['at']).set_index('at').resample('MS')['amount'].sum()
print(by_month.to_dict())
