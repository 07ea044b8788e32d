try:
    1 / 0
except ZeroDivisionError:
    raise OSError(2, 'No such file', 'x') from None
