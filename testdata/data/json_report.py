# Nested JSON to a report: normalize, merge, pivot, HTML, Markdown by hand.
import json
import pandas as pd

data = json.loads('''[{"id": 1, "user": {"name": "Ann", "tags": ["a", "b"]}, "items": [{"sku": "x", "n": 2}, {"sku": "y", "n": 1}]},
 {"id": 2, "user": {"name": "Bo", "tags": []}, "items": [{"sku": "x", "n": 5}]}]''')
items = pd.json_normalize(data, 'items', ['id', ['user', 'name']])
prices = pd.DataFrame({'sku': ['x', 'y', 'z'], 'price': [1.5, 10, 3]})
full = items.merge(prices, on='sku', how='outer', indicator=True)
full['cost'] = full['n'] * full['price']
table = full.pivot_table(index='user.name', columns='sku', values='cost', aggfunc='sum', fill_value=0, margins=True)
print(table.to_string())
print(full['_merge'].value_counts().to_dict(), pd.Series(data).map(lambda d: len(d['user']['tags'])).tolist())
report = table.reset_index().to_html(index=False)
open('/out/report.html', 'w').write(report)
print(report.count('<tr'), '\n'.join('| ' + ' | '.join(map(str, row)) + ' |' for row in table.reset_index().values))
