try:
    try:
        int('x')
    except ValueError as e:
        raise KeyError('second') from e
except KeyError:
    raise RuntimeError('third')
