# Excel out and in: several sheets, styles, a formula, a chart.
import datetime
import pandas as pd
from openpyxl import Workbook, load_workbook
from openpyxl.chart import BarChart, Reference
from openpyxl.styles import Font, PatternFill

wb = Workbook()
ws = wb.active
ws.title = 'Orders'
ws.append(['date', 'item', 'price', 'n'])
for i, (item, price, n) in enumerate([('pen', 1.5, 10), ('book', 12.25, 2), ('Größe ü', 3, 7)]):
    ws.append([datetime.date(2026, 1, i + 1), item, price, n])
ws['E1'] = 'total'
for row in range(2, 5):
    ws[f'E{row}'] = f'=C{row}*D{row}'
for cell in ws[1]:
    cell.font, cell.fill = Font(bold=True), PatternFill('solid', start_color='DDDDDD')
chart = BarChart()
chart.add_data(Reference(ws, min_col=4, min_row=1, max_row=4), titles_from_data=True)
ws.add_chart(chart, 'G2')
wb.save('/out/orders.xlsx')

df = pd.read_excel('/out/orders.xlsx', sheet_name='Orders')
print(df[['item', 'price', 'n']].to_string(index=False))
print(df['date'].dt.strftime('%d.%m.%Y').tolist(), (df['price'] * df['n']).sum())
with pd.ExcelWriter('/out/summary.xlsx', engine='openpyxl') as out:
    df.groupby('item')['n'].sum().to_excel(out, sheet_name='n')
    df[["price", "n"]].describe().to_excel(out, sheet_name="figures")
again = load_workbook('/out/summary.xlsx')
print(again.sheetnames, load_workbook('/out/orders.xlsx')['Orders']['E3'].value)
