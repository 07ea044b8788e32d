# The modules that the image data imports in advance (warm.py).
import numpy
import pandas
import matplotlib.pyplot as pyplot
import matplotlib.backends.backend_agg
import openpyxl
import pandas.plotting._matplotlib
import PIL.PngImagePlugin
import unitask_figures

# This finds the fonts, and loads the code that draws pictures and that reads and writes tables.
_table = pandas.DataFrame({'a': [1, 2], 'b': ['x', None]})
repr(_table)
repr(_table.groupby('b').agg(['mean', 'max']))
with io.BytesIO() as _out:
    _figure = pyplot.figure()
    _figure.add_subplot().plot([1, 2], label='x')
    _figure.legend()
    _table.plot(kind='bar', ax=_figure.add_subplot(), title='x')
    _figure.savefig(_out)
    pyplot.close(_figure)
for _write, _read in (_table.to_csv, pandas.read_csv), (_table.to_excel, pandas.read_excel):
    with io.BytesIO() as _out:
        _write(_out)
        _out.seek(0)
        _read(_out)
unitask_figures.forget()
del _table, _figure, _out, _write, _read
