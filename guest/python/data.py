table = pandas.DataFrame({'a': [1, 2, 3], 'b': numpy.arange(3) / 2, 'c': ['x', 'y', None]})
print(table, table.groupby('c').sum(numeric_only=True), sep='\n')
