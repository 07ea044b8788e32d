# Run once in a machine that becomes a template (python.c): what is imported here is there in
# every clone, before its program begins. Whatever draws random numbers while it is
# imported draws again in renew, which each run calls before its first line.
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


# Programs import these from here, and plain Python from the program's own folder if they are there.
_imported = {name for name in sys.modules if '.' not in name} - _before - set(sys.builtin_module_names)


def _names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _shadowed(program):
    """Whether a module beside the program, itself aside, has the name of one that is imported."""
    folder, own = os.path.split(os.path.realpath(program))
    for name in _names(folder):
        if name.partition('.')[0] not in _imported or name == own:
            continue
        if inspect.getmodulename(name) or any(inspect.getmodulename(inner) == '__init__' for inner in _names(os.path.join(folder, name))):
            return True
    return False


_packages = '/usr/local/lib/python%d.%d/dist-packages' % sys.version_info[:2]
_there = set(_names(_packages))


def _installed():
    """Whether packages of the run, which stand before Debian's, have one that is imported."""
    return any((inspect.getmodulename(name) or name) in _imported for name in _names(_packages) if name not in _there)


def renew(program):
    """Begin a run. It returns whether that wants a Python that has imported nothing."""
    random.seed()
    if 'numpy.random' in sys.modules:
        sys.modules['numpy.random'].seed()
    logging._startTime = time.time()
    if 'tempfile' in sys.modules:
        sys.modules['tempfile']._name_sequence = None
    if 'uuid' in sys.modules:
        sys.modules['uuid']._node = sys.modules['uuid']._last_timestamp = None
    if 'multiprocessing.process' in sys.modules:
        process = sys.modules['multiprocessing.process']
        process.current_process()._config['authkey'] = process.AuthenticationString(os.urandom(32))
    if _shadowed(program) or _installed():
        return True
    matplotlib = sys.modules.get('matplotlib')
    if not matplotlib or not os.path.isfile('matplotlibrc'):  # which it reads where it is imported
        return False
    try:
        own = matplotlib.rc_params_from_file('matplotlibrc', use_default_template=False)
    except Exception:  # which it is to raise there
        return True
    if 'backend' in own:
        return True
    matplotlib.rcParams.update(own)
    return False


gc.collect()
gc.freeze()  # what all clones have in common is not looked through again, least of all at the end
