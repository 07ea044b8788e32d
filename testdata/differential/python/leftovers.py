# Nothing of the rehearsals is there.
import atexit, gc, os, sys, codecs, warnings, signal, time
print(atexit._ncallbacks(), [o for o in gc.get_objects() if type(o).__name__ == 'Point' or getattr(o, '__name__', '') in ('rehearsal', 'Point')], os.environ.get('LD_PRELOAD'), os.environ.get('UNITASK_FRESH'), [k for k in sys.modules if 'json' in k or k == 're'], os.path.exists('/proc/self/fd/3'))
import json, re, collections, datetime
print(json.decoder.JSONDecodeError.__module__, re._cache if hasattr(re, '_cache') else '', datetime.datetime.__module__, sys.modules['json'] is json, len(re._cache))
