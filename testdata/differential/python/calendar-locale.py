import calendar, locale
print(calendar.month(2024, 2)); print(locale.getlocale(), locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), locale.localeconv()['decimal_point'])
print(locale.setlocale(locale.LC_ALL, ''), locale.format_string('%d', 1234567, grouping=True))
locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')
