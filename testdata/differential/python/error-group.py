def a(): raise ValueError('one')
errors = []
for n in range(2):
    try:
        a()
    except ValueError as e:
        e.add_note(f'note {n}')
        errors.append(e)
raise ExceptionGroup('several', [*errors, ExceptionGroup('inner', [TypeError(3)])])
