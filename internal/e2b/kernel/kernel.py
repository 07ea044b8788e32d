"""Runs the cells of a Python context, with IPython.

The host sends a line of JSON for each cell on standard input: {"code": …, "env": {…}}. The answers go to standard
output, a line of JSON each, in the form of E2B's code interpreter. {"type": "end_of_execution"} is a cell's last
answer. The output of the code and of its child processes comes through pipes, and becomes answers, too.
"""

import codecs
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import threading
import time


class Host:
    """Sends messages to the host."""

    def __init__(self):
        self.out = os.dup(1)
        self.lock = threading.Lock()

    def send(self, **message):
        line = json.dumps(message, default=str).encode() + b"\n"
        with self.lock:
            while line:
                line = line[os.write(self.out, line):]


class Stream:
    """Passes text that is written to a file descriptor on to the host."""

    def __init__(self, host, fd, kind):
        self.host, self.kind = host, kind
        self.mark = b"\x00" + os.urandom(16)
        self.seen = threading.Event()
        self.end, write = os.pipe()
        os.dup2(write, fd)
        os.close(write)
        self.fd = fd
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        decoder, held = codecs.getincrementaldecoder("utf-8")("replace"), b""
        while True:
            held += os.read(self.end, 1 << 16)
            while (at := held.find(self.mark)) >= 0:
                self.pass_on(decoder.decode(held[:at]))
                held = held[at + len(self.mark):]
                self.seen.set()
            keep = 0 if b"\x00" not in held[-len(self.mark):] else len(self.mark)
            self.pass_on(decoder.decode(held[:len(held) - keep]))
            held = held[len(held) - keep:]

    def pass_on(self, text):
        if text:
            self.host.send(type=self.kind, text=text, timestamp=time.time_ns())

    def drain(self):
        """Waits until the host has everything that was written before, for 5 s at most."""
        self.seen.clear()
        os.write(self.fd, self.mark)
        self.seen.wait(5)


FORMS = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
    "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
    "application/json": "json", "application/javascript": "javascript", "e2b/data": "data", "e2b/chart": "chart",
}


def result(data, main):
    """Returns a result's message."""
    message, extra = {"type": "result", "is_main_result": main}, {}
    for kind, value in data.items():
        if isinstance(value, bytes):
            import base64
            value = base64.b64encode(value).decode()
        if kind == "text/plain" and value[:1] == value[-1:] and value[:1] in ("'", '"') and len(value) > 1:
            value = value[1:-1]
        if kind in FORMS:
            message[FORMS[kind]] = value
        else:
            extra[kind] = value
    message["extra"] = extra
    return message


def frame_of(value):
    """Returns a table's columns as lists; None for any other value."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, pandas.DataFrame):
        return None
    plain = lambda v: v.isoformat() if isinstance(v, pandas.Timestamp) else v.item() if hasattr(v, "item") else v
    return {str(name): [plain(v) for v in column] for name, column in value.to_dict(orient="list").items()}


def chart_of(value):
    """Returns the data of a figure's charts: {} if they can't be read, and None if the value is no figure."""
    figure = sys.modules.get("matplotlib.figure")
    if figure is None or not isinstance(value, figure.Figure):
        return None
    try:
        from e2b_charts import chart_figure_to_dict
        return chart_figure_to_dict(value)
    except Exception:
        return {}


class PicturesShown(importlib.abc.MetaPathFinder):
    """Makes Pillow, when the code imports it, show each picture that it saves under a name, as in E2B."""

    def find_spec(self, name, path, target=None):
        if name != "PIL.Image":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            save = module.Image.save

            def shown(image, to, format=None, **options):
                if isinstance(to, str):
                    from IPython.display import display
                    display(image)
                save(image, to, format, **options)

            module.Image.save = shown

        spec.loader.exec_module = exec_module
        return spec


def new_shell(host):
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.formatters import BaseFormatter
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets import ObjectName, Type, Unicode
    from traitlets.config import Config

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, **more):
            host.send(**result(data, False))

        def clear_output(self, wait=False):
            pass

    class Hook(DisplayHook):
        def write_output_prompt(self):
            pass

        def write_format_data(self, data, metadata=None):
            host.send(**result(data, True))

        def finish_displayhook(self):
            pass

    class Data(BaseFormatter):
        _return_type = (dict, str)

        def __call__(self, value):
            found = self.read(value)
            return super().__call__(value) if found is None else found

    class Tables(Data):
        format_type = Unicode("e2b/data")
        print_method = ObjectName("_repr_e2b_data_")
        read = staticmethod(frame_of)

    class Charts(Data):
        format_type = Unicode("e2b/chart")
        print_method = ObjectName("_repr_e2b_chart_")
        read = staticmethod(chart_of)

    class Shell(InteractiveShell):
        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)

        def enable_gui(self, gui=None):
            pass

        def _showtraceback(self, kind, value, lines):
            host.send(type="error", name=kind.__name__, value=str(value), traceback="\n".join(lines))

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.autoindent = False
    shell = Shell.instance(config=config)
    shell.system = shell.system_raw
    for form in (Tables, Charts):
        shell.display_formatter.formatters[form.format_type.default_value] = form(parent=shell.display_formatter)
    sys.meta_path.insert(0, PicturesShown())
    return shell


def run(host, shell, cell):
    """Runs a cell."""
    before = {name: os.environ.get(name) for name in cell.get("env") or {}}
    os.environ.update(cell.get("env") or {})
    try:
        host.send(type="number_of_executions", execution_count=shell.execution_count)
        shell.run_cell(cell["code"], store_history=True)
    except KeyboardInterrupt:
        host.send(type="error", name="KeyboardInterrupt", value="", traceback="KeyboardInterrupt")
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def main():
    host = Host()
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    streams = [Stream(host, 1, "stdout"), Stream(host, 2, "stderr")]
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    sys.path.insert(0, "")
    shell = new_shell(host)
    host.send(type="ready")
    while True:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        line = requests.readline()
        if not line:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            run(host, shell, json.loads(line))
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            pass
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in streams:
            stream.drain()
        host.send(type="end_of_execution")


main()
