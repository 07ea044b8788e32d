import importlib, importlib.abc, importlib.metadata, importlib.resources, importlib.util, sys
class F(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None): return importlib.util.spec_from_loader(name, self) if name == 'made_up' else None
    def exec_module(self, m): m.x = 42
sys.meta_path.append(F()); import made_up; print(made_up.x, made_up, importlib.util.find_spec('json').name, [type(m).__name__ if not isinstance(m, type) else m.__name__ for m in sys.meta_path if 'istutils' not in str(m)])
importlib.reload(made_up); print(importlib.util.find_spec('nothing_here'), importlib.import_module('os.path').__name__)
importlib.import_module('json.nothing')
