"""Runs cells of Python code.

The host sends a line of JSON for each cell on standard input. The answers go to standard output, a line of JSON each.
The output of the code and of its child processes comes through pipes, and becomes answers, too.

For E2B's code interpreter a cell is {"code": …, "env": {…}}, and IPython runs it. The answers have E2B's form.
{"type": "end_of_execution"} is a cell's last answer.

With the argument jupyter, and the text of notebook.py, the host sends {"op": …} with the members of a request of
Jupyter's. The answers have the members of Jupyter's messages. {"type": "end"} is an operation's last answer. For
{"type": "input", "id": …} the host sends {"input": …, "value": …}. Cells run in IPython, or without it as a run's
notebook does.
"""

import builtins
import codecs
import getpass
import importlib.abc
import importlib.util
import json
import os
import queue
import signal
import sys
import threading
import time
import types


MOST = 12 << 20  # bytes of a message: the host's limit


class Host:
    """Sends messages to the host, in a thread of its own: an interrupt of the code must not cut one in two."""

    def __init__(self):
        self.out = os.dup(1)
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self.write, daemon=True).start()

    def send(self, **message):
        line = json.dumps(message, default=str).encode()
        if len(line) > MOST and message["type"] in ("result", "display"):
            raise ValueError(f"what is shown has {len(line)} bytes, and at most {MOST} pass")
        if len(line) > MOST:  # without the large members
            line = json.dumps({name: value for name, value in message.items()
                               if len(json.dumps(value, default=str)) < 1 << 16}, default=str).encode()
        self.lines.put(line + b"\n")

    def write(self):
        while True:
            line = self.lines.get()
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


class Standard:
    """The code's standard streams. Their input is empty."""

    def __init__(self, host):
        self.requests, self.errors = os.fdopen(os.dup(0), "rb"), os.dup(2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        self.streams = [Stream(host, 1, "stdout"), Stream(host, 2, "stderr")]
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)

    def drain(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # the code has closed or replaced it
                pass
        for stream in self.streams:
            stream.drain()


class Asker:
    """Asks the client for a line of text, in the place of standard input."""

    def __init__(self, host, standard):
        self.host, self.standard, self.count, self.allowed = host, standard, 0, False
        builtins.input = lambda prompt="": self.ask(prompt, False)
        getpass.getpass = lambda prompt="Password: ", stream=None: self.ask(prompt, True)

    def ask(self, prompt, secret):
        if not self.allowed:
            raise NotImplementedError("the client has no standard input: input() was called")
        self.standard.drain()
        self.count += 1
        self.host.send(type="input", id=self.count, prompt=str(prompt), password=secret)
        while True:
            line = self.standard.requests.readline()
            if not line:
                raise EOFError
            answer = json.loads(line)
            if answer.get("input") == self.count:
                if "error" in answer:
                    raise EOFError(answer["error"])
                return answer["value"]


def plain(data):
    """Returns a value's forms with text in the place of bytes."""
    import base64
    return {kind: base64.b64encode(value).decode() if isinstance(value, bytes) else value for kind, value in data.items()}


class WithIPython:
    """Serves Jupyter's requests with IPython."""

    def __init__(self, host):
        self.host = host
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        from IPython.core.displayhook import DisplayHook
        from IPython.core.displaypub import DisplayPublisher
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets import Type
        from traitlets.config import Config

        class Publisher(DisplayPublisher):
            def publish(self, data, metadata=None, *, transient=None, update=False, **more):
                host.send(type="display", data=plain(data), metadata=metadata or {}, update=update,
                          display=str((transient or {}).get("display_id") or ""))

            def clear_output(self, wait=False):
                host.send(type="clear", wait=bool(wait))

        class Hook(DisplayHook):
            def write_output_prompt(self):
                pass

            def write_format_data(self, data, metadata=None):
                host.send(type="result", data=plain(data), metadata=metadata or {})

            def finish_displayhook(self):
                pass

        class Shell(InteractiveShell):
            displayhook_class = Type(Hook)
            display_pub_class = Type(Publisher)

            def enable_gui(self, gui=None):
                pass

            def _showtraceback(self, kind, value, lines):
                host.send(type="error", name=kind.__name__, value=said(value), traceback=[str(line) for line in lines])

        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.autoindent = False
        self.shell = Shell.instance(config=config)
        self.shell.system = self.shell.system_raw
        self.shell.Completer.use_jedi = False
        self.pages = []  # that the cell has shown in a pager
        self.shell.set_hook("show_in_pager", lambda shell, data, start=0, screen_lines=0: self.pages.append(
            str(data.get("text/plain", "") if isinstance(data, dict) else data)))

    def execute(self, request):
        shell = self.shell
        shell.execution_count = request["count"]
        done = shell.run_cell(request["code"], store_history=request["store"], silent=request["silent"])
        error = done.error_before_exec or done.error_in_exec
        pages, self.pages = self.pages, []
        if error is not None:
            return {"error": type(error).__name__, "pages": pages}
        return {"expressions": shell.user_expressions(request["expressions"]), "pages": pages}

    def complete(self, request):
        from IPython.core.completer import provisionalcompleter, rectify_completions
        code, at = request["code"], request["cursor"]
        with provisionalcompleter():
            found = list(rectify_completions(code, self.shell.Completer.completions(code, at)))
        if not found:
            return {"matches": [], "start": at, "end": at}
        return {"matches": [each.text for each in found], "start": found[0].start, "end": found[0].end}

    def inspect(self, request):
        from IPython.utils.tokenutil import token_at_cursor
        name = token_at_cursor(request["code"], request["cursor"])
        try:
            return {"text": self.shell.object_inspect_mime(name, detail_level=request["detail"])["text/plain"]}
        except KeyError:
            return {"text": None}

    def is_complete(self, request):
        state, indent = self.shell.input_transformer_manager.check_complete(request["code"])
        return {"state": state, "indent": " " * (indent or 0)}


class Outputs(list):
    """In the place of a notebook's list of outputs: passes them on."""

    def __init__(self, host):
        self.host = host

    def append(self, output):
        self.host.send(type="display", data=output["data"], metadata={}, update=False, display="")

    def clear(self):
        self.host.send(type="clear", wait=False)


class WithoutIPython:
    """Serves Jupyter's requests as a run's notebook does."""

    def __init__(self, host, text):
        self.host = host
        self.cells = cells = types.ModuleType("cells")
        cells.__file__ = "<unitask>"
        exec(compile(text, cells.__file__, "exec"), cells.__dict__)
        cells.outputs, cells.say = Outputs(host), lambda text: None
        cells.begin()
        try:
            import unitask_figures
            unitask_figures._write = cells.figure
        except ImportError:
            os.environ.setdefault("MPLBACKEND", "Agg")

    def execute(self, request):
        cells = self.cells
        try:
            value = cells.execute(request["code"], request["count"])
            if value is not None and not request["silent"]:
                cells.space["_"] = value
                self.host.send(type="result", data=cells.bundle(value), metadata={})
            cells.figures()
        except BaseException as error:
            error.__traceback__ = error.__traceback__.tb_next  # not this frame
            self.fail(error)
            return {"error": type(error).__name__}
        return {"expressions": {name: self.evaluate(text) for name, text in request["expressions"].items()}}

    def fail(self, error):
        lines, text = self.cells.described(error)
        self.host.send(type="error", name=type(error).__name__, value=text, traceback="".join(lines).splitlines())

    def evaluate(self, text):
        try:
            return {"status": "ok", "data": self.cells.bundle(eval(text, self.cells.space)), "metadata": {}}
        except Exception as error:
            return {"status": "error", "ename": type(error).__name__, "evalue": said(error), "traceback": []}

    def complete(self, request):
        import re
        import rlcompleter
        at = request["cursor"]
        word = re.search(r"[\w.]*$", request["code"][:at]).group()
        complete, found = rlcompleter.Completer(self.cells.space).complete, []
        while word and len(found) < 1000 and (one := complete(word, len(found))) is not None:
            found.append(one)
        return {"matches": [one.rstrip("() ") for one in found], "start": at - len(word), "end": at}

    def inspect(self, request):
        import inspect
        import re
        code, at = request["code"], request["cursor"]
        head = re.search(r"[\w.]*$", code[:at].rstrip("(")).group()
        name = head + (re.match(r"\w*", code[at:]).group() if code[:at].endswith(head) else "")
        try:
            value = self.cells.space[name.split(".")[0]] if name.split(".")[0] in self.cells.space else \
                getattr(builtins, name.split(".")[0])
            for part in name.split(".")[1:]:
                value = getattr(value, part)
        except Exception:
            return {"text": None}
        try:
            sign = f"{name}{inspect.signature(value)}"
        except (TypeError, ValueError):
            sign = f"{name}: {type(value).__name__} = {repr(value)[:200]}"
        return {"text": "\n\n".join(part for part in (sign, inspect.getdoc(value)) if part)}

    def is_complete(self, request):
        import codeop
        try:
            whole = codeop.compile_command(self.cells.plain(request["code"])) is not None
        except (SyntaxError, ValueError, OverflowError):
            return {"state": "invalid", "indent": ""}
        last = request["code"].rstrip("\n").rpartition("\n")[2]
        indent = last[:len(last) - len(last.lstrip())] + ("    " if last.rstrip().endswith(":") else "")
        return {"state": "complete" if whole else "incomplete", "indent": indent}


def said(error):
    try:
        return str(error)
    except Exception:
        return ""


def serve_jupyter(host, standard, text):
    """Carries out the host's requests, one at a time."""
    asker = Asker(host, standard)
    try:
        import IPython.core.interactiveshell  # noqa: F401
    except ImportError:
        serving = WithoutIPython(host, text)
    else:
        try:
            serving = WithIPython(host)
        except BaseException as error:  # the host says why there is no kernel
            os.write(standard.errors, f"IPython: {type(error).__name__}: {said(error)[:300]}".encode())
            raise
    host.send(type="ready", version="%d.%d.%d" % sys.version_info[:3])
    operations = {name: getattr(serving, name) for name in ("execute", "complete", "inspect", "is_complete")}
    while True:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        line = standard.requests.readline()
        if not line:
            return
        request = json.loads(line)
        if request.get("op") not in operations:  # an answer to a question that was given up
            continue
        asker.allowed, answer = request.get("stdin", False), {}
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            answer = operations[request["op"]](request)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except BaseException as error:  # of a second interrupt, too
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            answer = {"error": type(error).__name__}
            if request["op"] == "execute":
                host.send(type="error", name=type(error).__name__, value=said(error), traceback=[type(error).__name__])
        standard.drain()
        host.send(type="end", **answer)


def serve_e2b(host, standard):
    shell = new_shell(host)
    host.send(type="ready")
    while True:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        line = standard.requests.readline()
        if not line:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            run(host, shell, json.loads(line))
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            pass
        standard.drain()
        host.send(type="end_of_execution")


def main():
    host = Host()
    standard = Standard(host)
    sys.path.insert(0, "")
    if sys.argv[1:2] == ["jupyter"]:
        text, sys.argv = sys.argv[2], [""]
        serve_jupyter(host, standard, text)
    else:
        serve_e2b(host, standard)


main()
