import os, runpy, sys, zipfile
with open('other.py', 'w') as f:
    f.write('import sys\nprint(__name__, sys.argv[0].rpartition("/")[2])\nx = 3\n')
print(runpy.run_path('other.py', run_name='__main__')['x'])
with zipfile.ZipFile('app.zip', 'w') as z:
    z.writestr('__main__.py', 'print("from a zip", __file__.rpartition("/")[2])\n')
runpy.run_path('app.zip')
print(sys.modules['__main__'].__name__)
