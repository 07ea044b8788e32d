# What is imported before the program (but for what site-packages of the host bring).
import sys
print(sorted(m for m in sys.modules if not m.startswith('_distutils')))
