# The modules that the image data imports in advance (warm.py).
import numpy
import pandas
import matplotlib.pyplot as pyplot
import matplotlib.backends.backend_agg
import PIL.PngImagePlugin
import unitask_figures

# Finds the fonts, and loads the code that draws and writes a picture.
with io.BytesIO() as out:
    figure = pyplot.figure()
    figure.add_subplot().plot([1, 2], label='x')
    figure.legend()
    figure.savefig(out)
    pyplot.close(figure)
repr(pandas.DataFrame({'a': [1, 2], 'b': ['x', None]}))
unitask_figures.forget()
del out, figure
