# Runs once in a machine that becomes a template (warm.c): every clone has the imported modules
# before its program begins. Modules that draw random numbers while they are imported draw again in
# renew, which each run calls before its first line.
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

# Programs get these imported modules; plain Python would prefer the files in the program's folder.
imported = frozenset(name for name in sys.modules if '.' not in name) - _before - set(sys.builtin_module_names)


def _names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


# Packages of the run are here, and take precedence over Debian's.
packages = '/usr/local/lib/python%d.%d/dist-packages' % sys.version_info[:2]
there = frozenset(_names(packages))


def shadowed(program):
    """Whether a module beside the program, itself aside, or a package of the run has the name of one that is imported."""
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
    """Follow the matplotlibrc of the program's folder. It returns whether that wants a Python that has imported nothing."""
    matplotlib = sys.modules.get('matplotlib')
    if not matplotlib or not os.path.isfile('matplotlibrc'):  # which it reads when it is imported
        return False
    try:
        own = matplotlib.rc_params_from_file('matplotlibrc', use_default_template=False)
    except Exception:  # it must be raised there
        return True
    if 'backend' in own:
        return True
    matplotlib.rcParams.update(own)
    return False


def _mersenne():
    """The address of the state of numpy's own generator: 624 words, and how many are used up. 0 where it is not known."""
    if 'numpy.random' not in sys.modules:
        return 0
    try:
        import ctypes
        sys.modules['numpy.random'].seed()
        generator = sys.modules['numpy.random'].mtrand._rand._bit_generator
        address, state = generator.ctypes.state_address, generator.state
        words = ctypes.string_at(address, 625 * 4)
    except Exception:  # an unknown version of numpy
        return 0
    if state['bit_generator'] != 'MT19937' or words != state['state']['key'].tobytes() + state['state']['pos'].to_bytes(4, sys.byteorder):
        return 0
    return address


mersenne = _mersenne()  # warm.c fills it
_seed = super(random.Random, random._inst).seed  # the generator's function in C


def renew():
    """Have what is imported here begin as in a new process."""
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
gc.freeze()  # the collector no longer inspects objects that all clones share, especially at the end
