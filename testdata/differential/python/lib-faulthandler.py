import faulthandler, sys
def inner(): faulthandler.dump_traceback(file=sys.stderr, all_threads=False)
inner()
faulthandler.enable()
print(faulthandler.is_enabled())
