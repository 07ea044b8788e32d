# Before the program, only Python's own modules are imported, and those that a .pth file of a host's packages imports.
import sys, os
usual = {'__main__', '_abc', '_codecs', '_collections_abc', '_frozen_importlib', '_frozen_importlib_external', '_imp', '_io', '_signal',
         '_sitebuiltins', '_stat', '_thread', '_warnings', '_weakref', 'abc', 'builtins', 'codecs', 'encodings', 'encodings.aliases', 'encodings.utf_8',
         'genericpath', 'io', 'marshal', 'os', 'os.path', 'posix', 'posixpath', 'site', 'sitecustomize', 'stat', 'sys', 'time', 'zipimport'}
brought = not os.path.exists('/unitask') and [name for folder in sys.path if os.path.isdir(folder) and folder != sys.path[0] for name in os.listdir(folder)
           if name.endswith('.pth') and name != 'distutils-precedence.pth']
here = {m for m in sys.modules if not m.startswith('_distutils')}
print('missing', sorted(usual - here))
print('more', [] if brought else sorted(here - usual))
