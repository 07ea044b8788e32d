import os, sys
here = os.path.dirname(__file__)
os.mkdir(here + '/package')
for name, text in {'sibling.py': 'print("sibling", __name__, __file__.rpartition("/")[2])\nvalue = 7\n', 'package/__init__.py': 'from . import inner\n', 'package/inner.py': 'import sibling\nname = __package__\n',
                   'broken.py': 'def f():\n    raise ValueError("from a neighbour")\n'}.items():
    with open(f'{here}/{name}', 'w') as f:
        f.write(text)
import sibling, package
print(sibling.value, package.inner.name, sorted(os.listdir(here)), os.listdir(here + '/__pycache__'))
import broken
broken.f()
