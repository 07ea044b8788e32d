# CSV to a table and a bar chart.
import io
import pandas as pd
import matplotlib.pyplot as plt

text = '''month,region,sales
2026-01,north,120
2026-01,south,80
2026-02,north,150
2026-02,south,95
2026-03,north,130
2026-03,south,
'''
df = pd.read_csv(io.StringIO(text))
totals = df.groupby('region')['sales'].agg(['sum', 'mean', 'count'])
print(totals)
pivot = df.pivot(index='month', columns='region', values='sales')
ax = pivot.plot.bar(title='Sales', rot=0)
ax.set_ylabel('units')
plt.tight_layout()
plt.show()
assert plt.get_fignums() == [], 'a figure that was shown is closed'
