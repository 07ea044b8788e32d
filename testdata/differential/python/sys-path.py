import os, sys
print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.path[1:4])
print([k for k in sys.path_importer_cache if 'rehearsal' in k])
