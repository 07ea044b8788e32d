import csv, io, sys
w = csv.DictWriter(sys.stdout, ['a', 'b'], dialect='unix'); w.writeheader(); w.writerow({'a': 'x "y"', 'b': 'line\nbreak'})
print(list(csv.reader(io.StringIO('1;"2;3"\r\n4;5\r\n'), delimiter=';')), csv.Sniffer().sniff('a|b\n1|2\n').delimiter)
