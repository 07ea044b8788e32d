# Runs the cells of a notebook, the first argument, in order. Writes the notebook with their outputs to
# /out, and also prints the outputs and the values of last expressions. A cell that fails ends the run.
import ast
import asyncio
import base64
import inspect
import io
import json
import linecache
import os
import subprocess
import sys
import time
import traceback
import types

OUT = '/out'
MIMES = {'_repr_html_': 'text/html', '_repr_markdown_': 'text/markdown', '_repr_svg_': 'image/svg+xml', '_repr_png_': 'image/png',
         '_repr_jpeg_': 'image/jpeg', '_repr_latex_': 'text/latex', '_repr_json_': 'application/json'}
UNNEEDED = ('matplotlib', 'load_ext', 'reload_ext', 'autoreload', 'config', 'precision', 'pylab')

outputs = []  # the current cell's outputs
room = 16 << 20  # characters of printed text that the notebook still accepts
FULL = '\n[the notebook has no more of what was printed]\n'


class Stream(io.TextIOBase):
    """A standard stream whose text also becomes an output of the cell."""

    def __init__(self, name, under):
        self._name, self._under = name, under

    def write(self, text):
        global room
        written = self._under.write(text)
        if text and room > 0:
            if not (outputs and outputs[-1].get('name') == self._name):
                outputs.append({'output_type': 'stream', 'name': self._name, 'text': io.StringIO()})
            outputs[-1]['text'].write(text[:room])
            room -= len(text)
            if room <= 0:
                outputs[-1]['text'].write(FULL)
        return written

    def writable(self):
        return True

    def flush(self):
        if not self._under.closed:  # the code may have closed it
            self._under.flush()

    def isatty(self):
        return False

    def fileno(self):
        return self._under.fileno()

    encoding = property(lambda self: self._under.encoding)
    errors = property(lambda self: self._under.errors)
    buffer = property(lambda self: self._under.buffer)


def bundle(value):
    """Return the forms in which to show a value, by MIME type."""
    data = {'text/plain': repr(value)}
    if isinstance(value, type):
        return data
    for name, mime in MIMES.items():
        try:
            shown = getattr(value, name)()
        except Exception:  # the value has no such form, or can't create it
            continue
        if isinstance(shown, tuple) and shown:
            shown = shown[0]
        if isinstance(shown, (str, bytes)):
            data[mime] = shown if isinstance(shown, str) else base64.b64encode(shown).decode()
        elif shown is not None and mime == 'application/json':
            try:
                data[mime] = json.loads(json.dumps(shown))
            except (ValueError, TypeError, RecursionError):
                continue  # the form is not valid JSON
    return data


def say(text):
    """Print to the run's output only, not to the notebook."""
    sys.__stdout__.write(text + '\n')


def display(*values, **_):
    for value in values:
        data = bundle(value)
        say(data['text/plain'])
        outputs.append({'output_type': 'display_data', 'data': data, 'metadata': {}})


def figure(canvas):
    picture = io.BytesIO()
    canvas.print_figure(picture, format='png', bbox_inches='tight')
    data = {'text/plain': repr(canvas.figure), 'image/png': base64.b64encode(picture.getvalue()).decode()}
    outputs.append({'output_type': 'display_data', 'data': data, 'metadata': {}})


def figures():
    """Show the figures that a cell has left open, as notebooks do."""
    helpers = sys.modules.get('matplotlib._pylab_helpers')
    for manager in helpers.Gcf.get_all_fig_managers() if helpers else ():
        figure(manager.canvas)
        helpers.Gcf.destroy(manager.num)


def shell(command):
    done = subprocess.run(command, shell=True, text=True, errors='replace', stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    sys.stdout.write(done.stdout)


def magic(line):
    """Run a line that begins with % or !."""
    line = line.strip()
    name, _, rest = line[1:].partition(' ')
    if line[0] == '!' or name in ('sx', 'system'):
        shell(line[1:] if line[0] == '!' else rest)
    elif name == 'pip':
        sys.stderr.write('packages come by --with pip:NAME\n')
    elif name == 'cd':
        os.chdir(os.path.expanduser(rest or '~'))
    elif name == 'time':
        began = time.perf_counter()
        exec(rest, space)
        print(f'Wall time: {time.perf_counter() - began:.3g} s')
    elif name not in UNNEEDED:
        raise NameError(f'the notebook asks for %{name}, which only Jupyter has')


def plain(source):
    """Return a cell as Python, where lines with % and ! become calls."""
    try:
        ast.parse(source)
        return source
    except SyntaxError:
        lines = source.split('\n')
    for i, line in enumerate(lines):
        bare = line.lstrip()
        if bare[:1] in ('%', '!'):
            lines[i] = f'{line[:len(line) - len(bare)]}__magic__({bare!r})'
    return '\n'.join(lines)


def cell_magic(source):
    """Run a cell that begins with %%, and return the Python in it that is left to run."""
    first, _, rest = source.partition('\n')
    name, _, argument = first[2:].strip().partition(' ')
    if name in ('bash', 'sh'):
        shell(rest)
    elif name == 'writefile':
        with open(argument.strip(), 'w') as f:
            f.write(rest)
    elif name in ('time', 'timeit', 'capture', 'python', 'python3', 'prun'):
        return rest
    else:
        raise NameError(f'the notebook asks for %%{name}, which only Jupyter has')
    return ''


def execute(source, count):
    """Run a cell, and return the value of its last expression, None if there is no such expression."""
    if source.startswith('%%'):
        source = cell_magic(source)
    text = plain(source)
    name = f'<cell {count}>'
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    tree = ast.parse(text, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(';'):
        last = ast.Expression(tree.body.pop().value)
    value = None
    for part, mode in ((tree, 'exec'), (last, 'eval')):
        if part is None:
            continue
        code = compile(part, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, space)
        if code.co_flags & inspect.CO_COROUTINE:
            value = loop.run_until_complete(value)
    return value if last else None


def described(error):
    """Return the lines of an error's traceback without the frames of this file, and its text."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename in (__file__, ast.__file__):
        frames = frames.tb_next
    frame, theirs = frames, None
    while frame:
        if frame.tb_frame.f_code.co_filename != __file__:
            theirs = frame
        frame = frame.tb_next
    if theirs:
        theirs.tb_next = None
    try:
        said = str(error)
    except Exception:
        said = ''
    return traceback.format_exception(type(error), error, frames), said


def failed(error):
    """Add an error to the outputs, and print it."""
    lines, said = described(error)
    try:
        sys.__stderr__.write(''.join(lines))
    except ValueError:
        pass  # the code has closed the stream
    outputs.append({'output_type': 'error', 'ename': type(error).__name__, 'evalue': said, 'traceback': ''.join(lines).splitlines()})


def run(cell, source, goes_on, count):
    """Run a cell, and return the run's exit code, or None to continue with the next cell."""
    global outputs
    outputs = cell['outputs'] = []
    cell['execution_count'] = count
    try:
        value = execute(source, count)
        if value is not None:
            space['_'] = value
            data = bundle(value)
            say(data['text/plain'])
            outputs.append({'output_type': 'execute_result', 'execution_count': count, 'data': data, 'metadata': {}})
        figures()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        failed(error)
        return None if goes_on else 1
    return None


def text_of(cell):
    source = cell.get('source', '')
    return source if isinstance(source, str) else ''.join(source)


def read(path):
    """Return a notebook, and a list of its code cells that are not empty: the cell, its code, whether it may fail."""
    try:
        with open(path, encoding='utf-8') as f:
            notebook = json.load(f)
        cells = []
        for cell in notebook['cells']:
            if cell['cell_type'] == 'code' and text_of(cell).strip():
                tags = (cell.get('metadata') or {}).get('tags') or ()
                cells.append((cell, text_of(cell), 'raises-exception' in tags))
        kernel = (notebook.get('metadata') or {}).get('kernelspec') or {}
        language = kernel.get('language', 'python')
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        sys.exit(f'{path} is no notebook of format 4: {type(error).__name__}: {error}')
    if language != 'python':
        sys.exit(f'{path} is a notebook in {language}: only Python runs')
    return notebook, cells


def save(notebook, name):
    new = f'{OUT}/.notebook'
    try:
        # An unpaired surrogate becomes its escape sequence, which is also valid JSON.
        with open(new, 'w', encoding='utf-8', errors='backslashreplace') as f:
            json.dump(notebook, f, indent=1, ensure_ascii=False, default=io.StringIO.getvalue)
            f.write('\n')
        os.replace(new, f'{OUT}/{name}')
    except (OSError, ValueError, TypeError, RecursionError) as error:
        sys.exit(f"the notebook can't be written: {type(error).__name__}: {error}")


def in_jupyters_place():
    """Provide the few names of IPython that notebooks import, because IPython is not installed."""
    shown = {name: type(name, (), {'__module__': 'IPython.display', '__init__': lambda self, data='', **_: setattr(self, 'data', data), method: lambda self: self.data})
             for name, method in (('HTML', '_repr_html_'), ('Markdown', '_repr_markdown_'), ('SVG', '_repr_svg_'), ('Latex', '_repr_latex_'))}
    module = types.ModuleType('IPython.display')
    module.__dict__.update(shown, display=display, clear_output=lambda *_, **__: outputs.clear())
    package = types.ModuleType('IPython')
    package.display = module
    package.version_info = (8, 24)  # from this version on, matplotlib lets IPython choose the backend
    package.get_ipython = lambda: None
    sys.modules.update({'IPython': package, 'IPython.display': module})


def main(path):
    notebook, cells = read(path)
    sys.stdout, sys.stderr = Stream('stdout', sys.__stdout__), Stream('stderr', sys.__stderr__)
    try:
        import unitask_figures
        unitask_figures._write = figure
    except ImportError:
        pass  # only the image data has the module
    end = None
    for count, (cell, source, goes_on) in enumerate(cells, 1):
        end = run(cell, source, goes_on, count)
        save(notebook, os.path.basename(path))
        if end is not None:
            break
    else:
        save(notebook, os.path.basename(path))
    if not sys.__stdout__.closed:
        sys.__stdout__.flush()
    return end or 0


def begin():
    """Create the module in which cells run, and what they find in Jupyter."""
    global ours, space, loop
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    ours = sys.modules['__main__']  # this reference keeps Python from freeing the module's contents
    module = sys.modules['__main__'] = types.ModuleType('__main__')
    space = module.__dict__
    space.update(__builtins__=__builtins__, display=display, __magic__=magic)
    try:
        import IPython  # noqa: F401
    except ImportError:
        in_jupyters_place()


if __name__ == '__main__':  # else internal/pykernel runs the cells
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    begin()
    sys.exit(main(sys.argv[0]))
