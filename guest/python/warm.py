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

import numpy
import pandas
import matplotlib.pyplot as pyplot
import matplotlib.backends.backend_agg
import PIL.PngImagePlugin
import unitask_figures

# Fonts are found, and what draws and writes a picture is loaded.
with io.BytesIO() as out:
    figure = pyplot.figure()
    figure.add_subplot().plot([1, 2], label='x')
    figure.legend()
    figure.savefig(out)
    pyplot.close(figure)
repr(pandas.DataFrame({'a': [1, 2], 'b': ['x', None]}))
unitask_figures.forget()


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


def _installed():
    """Whether packages of the run, which stand before Debian's, have one that is imported."""
    folder = '/usr/local/lib/python3.11/dist-packages'
    return any((inspect.getmodulename(name) or name) in _imported for name in _names(folder))


def renew(program):
    """Begin a run. It returns whether that wants a Python that has imported nothing."""
    random.seed()
    numpy.random.seed()
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
    if not os.path.isfile('matplotlibrc'):  # matplotlib reads it where it is imported
        return False
    try:
        own = matplotlib.rc_params_from_file('matplotlibrc', use_default_template=False)
    except Exception:  # which it is to raise there
        return True
    if 'backend' in own:
        return True
    matplotlib.rcParams.update(own)
    return False


del out, figure
gc.collect()
gc.freeze()  # what all clones have in common is not looked through again, least of all at the end
