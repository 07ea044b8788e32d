# Figures by HTTP: a table that pandas reads from its address, pages of JSON, something sent back, and what is refused.
import json
import urllib.error
import urllib.request

import pandas as pd

sales = pd.read_csv('http://good.example/sales.csv', parse_dates=['day'])
rates, url = {}, 'https://good.example/rates?page=1'
while url:
    with urllib.request.urlopen(url) as answer:
        page = json.load(answer)
    rates |= page['rates']
    url = page['next']
sales['eur'] = (sales['amount'] * sales['currency'].map(rates)).round(2)
report = sales.groupby('currency')['eur'].agg(['sum', 'count'])
print(report.to_string())
same = pd.read_csv('https://good.example/sales.csv.gz', parse_dates=['day'])
print(same.equals(sales.drop(columns='eur')), same['day'].dt.month.tolist())
request = urllib.request.Request('https://good.example/report', report.to_json().encode(), {'Content-Type': 'application/json'}, method='PUT')
with urllib.request.urlopen(request) as answer:
    print(answer.status, answer.read().decode())
for url in 'http://good.example/nothing', 'http://evil.example/':
    try:
        urllib.request.urlopen(url)
    except urllib.error.HTTPError as e:
        print(e.code, e.reason)
    except urllib.error.URLError as e:
        print(type(e.reason).__name__)
