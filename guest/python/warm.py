# Runs once in a machine that becomes a template (warm.c), so every clone has the imported modules before
# its program begins. Some modules draw random numbers at their import. renew draws these again, before
# each run's first line.
import sys
_before = set(sys.modules)
import gc
import inspect
import io
import logging
import os
import random
import time

IMPORTS


# warm.c reads imported, packages, there, mersenne and modules; it calls renew, shadowed and
# settings.

# Programs get these imported modules, where plain Python would prefer files in the program's folder.
imported = frozenset(name for name in sys.modules if '.' not in name) - _before - set(sys.builtin_module_names)


def _names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


# The run's packages are in this folder, and take precedence over Debian's.
packages = '/usr/local/lib/python%d.%d/dist-packages' % sys.version_info[:2]
there = frozenset(_names(packages))


def shadowed(program):
    """Return whether another module in the program's folder, or a package of the run, has an imported module's name."""
    if any((inspect.getmodulename(name) or name) in imported for name in _names(packages) if name not in there):
        return True
    folder, own = os.path.split(os.path.realpath(program))
    for name in _names(folder):
        if name.partition('.')[0] not in imported or name == own:
            continue
        if inspect.getmodulename(name) or any(inspect.getmodulename(inner) == '__init__' for inner in _names(os.path.join(folder, name))):
            return True
    return False


def settings():
    """Apply the matplotlibrc of the program's folder. Return True if only a new Python process can apply it."""
    matplotlib = sys.modules.get('matplotlib')
    if not matplotlib or not os.path.isfile('matplotlibrc'):  # matplotlib reads the file at its import
        return False
    try:
        own = matplotlib.rc_params_from_file('matplotlibrc', use_default_template=False)
    except Exception:  # the new process will raise it
        return True
    if 'backend' in own:
        return True
    matplotlib.rcParams.update(own)
    return False


def _mersenne():
    """Return the address of numpy's default generator's state: 624 words, and the number of used ones. 0 if unknown."""
    if 'numpy.random' not in sys.modules:
        return 0
    try:
        import ctypes
        sys.modules['numpy.random'].seed()
        generator = sys.modules['numpy.random'].mtrand._rand._bit_generator
        address, state = generator.ctypes.state_address, generator.state
        words = ctypes.string_at(address, 625 * 4)
    except Exception:  # numpy has an unknown version
        return 0
    if state['bit_generator'] != 'MT19937' or words != state['state']['key'].tobytes() + state['state']['pos'].to_bytes(4, sys.byteorder):
        return 0
    return address


mersenne = _mersenne()  # warm.c writes seeds there
_seed = super(random.Random, random._inst).seed  # the generator's function in C


def renew():
    """Reset the state of imported modules as in a new process."""
    _seed()
    random._inst.gauss_next = None
    if not mersenne and 'numpy.random' in sys.modules:
        sys.modules['numpy.random'].seed()
    logging._startTime = time.time()
    if 'tempfile' in sys.modules:
        sys.modules['tempfile']._name_sequence = None
    if 'uuid' in sys.modules:
        sys.modules['uuid']._node = sys.modules['uuid']._last_timestamp = None
    if 'multiprocessing.process' in sys.modules:
        process = sys.modules['multiprocessing.process']
        process.current_process()._config['authkey'] = process.AuthenticationString(os.urandom(32))


modules = {name: module for name, module in sys.modules.items() if name not in ('__main__', 'sys', 'builtins')}
gc.collect()
gc.freeze()  # the collector ignores these objects, which all clones share
