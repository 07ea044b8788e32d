"""matplotlib's default backend in the guest: Agg, which writes figures to /out.

plt.show() writes the open figures as figure-1.png, figure-2.png, … and closes them, as if the user
had closed their windows. Open figures that were neither shown nor saved are written when the
program ends. A figure that the program itself has saved below /out is not written again. Other
backends are unchanged.
"""
import atexit
import io
import os
import traceback

from matplotlib._pylab_helpers import Gcf
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

FOLDER = '/out'

_next = 1
_saved = '_unitask_saved'  # a figure's attribute: where the program saved it, FOLDER or 'elsewhere'
_main = None  # the process whose end is the program's end


class FigureCanvas(FigureCanvasAgg):
    def print_figure(self, filename, *args, **kwargs):
        result = super().print_figure(filename, *args, **kwargs)
        name = getattr(filename, 'name', None) if hasattr(filename, 'write') else filename
        inside = isinstance(name, (str, os.PathLike)) and os.path.realpath(name).startswith(FOLDER + '/')
        setattr(self.figure, _saved, FOLDER if inside else getattr(self.figure, _saved, 'elsewhere'))
        return result


FigureCanvasAgg = FigureCanvas
FigureManager = FigureManagerBase
FigureCanvas.manager_class = FigureManagerBase


def new_figure_manager(num, *args, FigureClass=None, **kwargs):
    from matplotlib.figure import Figure
    return new_figure_manager_given_figure(num, (FigureClass or Figure)(*args, **kwargs))


def new_figure_manager_given_figure(num, figure):
    global _main
    if _main is None:
        _main = os.getpid()
        atexit.register(_at_exit)
    return FigureManagerBase(FigureCanvas(figure), num)


def draw_if_interactive():
    pass


def show(*args, **kwargs):
    for manager in Gcf.get_all_fig_managers():
        if getattr(manager.canvas.figure, _saved, None) != FOLDER:
            _write(manager.canvas)
        Gcf.destroy(manager.num)


def _at_exit():
    if os.getpid() != _main:
        return
    for manager in Gcf.get_all_fig_managers():
        if not hasattr(manager.canvas.figure, _saved):
            try:
                _write(manager.canvas)
            except Exception:  # go on with the other figures
                traceback.print_exc()


def _write(canvas):
    global _next
    picture = io.BytesIO()  # write to the file only when the picture is complete
    canvas.print_figure(picture, format='png')
    while True:
        path = f'{FOLDER}/figure-{_next}.png'
        _next += 1
        try:
            out = open(path, 'xb')
        except FileExistsError:
            continue
        with out:
            out.write(picture.getbuffer())
        return


def forget():
    """Restore this module's state after its import."""
    global _next, _main
    _next, _main = 1, None
    atexit.unregister(_at_exit)
