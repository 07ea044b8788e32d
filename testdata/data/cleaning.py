# Messy data made tidy.
import numpy as np
import pandas as pd

raw = pd.DataFrame({
    'Name ': [' ann', 'BOB', 'bob ', None, 'Zoë'],
    'Age': ['31', 'n/a', '45', '27', '1000'],
    'Joined': ['2026-01-05', '05/02/2026', 'bad', '2026-03-01', None],
    'Amount': ['1,200.50', '$30', '30', '-5', ''],
})
df = raw.rename(columns=lambda c: c.strip().lower())
df['name'] = df['name'].str.strip().str.title()
df['age'] = pd.to_numeric(df['age'], errors='coerce').where(lambda s: s < 120)
df['joined'] = pd.to_datetime(df['joined'], errors='coerce', format='%Y-%m-%d')
df['amount'] = pd.to_numeric(df['amount'].str.replace(r'[$,]', '', regex=True), errors='coerce')
print(df.to_string())
print(df.isna().sum().to_dict(), df.duplicated('name').sum())
df['band'] = pd.cut(df['age'], [0, 30, 40, 120], labels=['young', 'middle', 'old'])
tidy = df.dropna(subset=['name']).drop_duplicates('name', keep='last').fillna({'age': df['age'].median()})
print(tidy[['name', 'age', 'band']].to_dict('records'))
print(tidy.melt('name', ['age', 'amount']).sort_values(['variable', 'name']).round(1).values.tolist())
tidy.to_csv('/out/tidy.csv', index=False)
assert np.isnan(tidy['amount']).sum() == 1
