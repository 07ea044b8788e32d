import warnings
warnings.warn('careful')
warnings.warn('old', DeprecationWarning)
def f(): warnings.warn('here', RuntimeWarning, stacklevel=2)
f(); f()
with warnings.catch_warnings(record=True) as got:
    warnings.simplefilter('always')
    warnings.warn('caught')
    print(len(got), got[0].message)
print(warnings.filters)
