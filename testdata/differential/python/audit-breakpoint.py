import sys, os
seen = []
sys.addaudithook(lambda e, a: seen.append(e) if e in ('open', 'compile') else None)
open(os.devnull).close(); eval('1'); print(seen)
os.environ['PYTHONBREAKPOINT'] = '0'
breakpoint()
print('past it', sys.breakpointhook)
