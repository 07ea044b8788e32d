# Run once in a machine that becomes a template (python.c): what is imported here is there in
# every clone, before its program begins. Whatever draws random numbers while it is
# imported draws again in renew, which each run calls before its first line.
import gc
import io
import logging
import os
import random
import sys
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


def renew():
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
    if os.path.exists('matplotlibrc'):  # matplotlib reads it where it is imported
        matplotlib.rc_file('matplotlibrc')


del out, figure
gc.collect()
gc.freeze()  # what all clones have in common is not looked through again, least of all at the end
