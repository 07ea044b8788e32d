"""Drives the kernel "unitask" with Jupyter's own clients: jupyter_client, nbclient and jupyter execute."""

import subprocess
import sys

import nbformat
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


def cell(client, code, **options):
    """Runs a cell, and returns its reply and its outputs."""
    outputs = []
    reply = client.execute_interactive(code, timeout=900, output_hook=outputs.append, **options)
    return reply["content"], [(m["msg_type"], m["content"]) for m in outputs if m["msg_type"] != "status"]


def same(what, got, want):
    if got != want:
        sys.exit(f"{what}: {got!r} instead of {want!r}")
    print("ok", what, flush=True)


def printed(outputs):
    return "".join(content["text"] for kind, content in outputs if kind == "stream" and content["name"] == "stdout")


def interrupted(manager, client, code):
    """Interrupts a cell once it has printed something, and returns its reply."""
    client.execute(code)
    while client.get_iopub_msg(timeout=120)["msg_type"] != "stream":
        pass
    manager.interrupt_kernel()
    return client.get_shell_msg(timeout=60)["content"]


def of_client():
    manager, client = start_new_kernel(kernel_name="unitask", startup_timeout=120)
    reply, outputs = cell(client, "import os, socket\nx = 40\nprint('out', os.getuid())\nx + 2")
    same("status", reply["status"], "ok")
    same("result", [c["data"]["text/plain"] for k, c in outputs if k == "execute_result"], ["42"])
    reply, outputs = cell(client, "def f():\n    return 1 / 0\nf()")
    same("error", (reply["status"], reply["ename"]), ("error", "ZeroDivisionError"))
    trace = "\n".join([c for k, c in outputs if k == "error"][0]["traceback"])
    same("traceback", "return 1 / 0" in trace, True)
    same("interrupt", interrupted(manager, client, "print('on', flush=True)\nwhile True: pass")["ename"], "KeyboardInterrupt")
    same("after it", cell(client, "print(x)")[1][-1][1]["text"], "40\n")

    asked = []

    def answer(message):
        asked.append((message["content"]["prompt"], message["content"]["password"]))
        client.input("Ada")

    code = "import getpass\nprint(input('name? ') + getpass.getpass('word? '))"
    outputs = cell(client, code, allow_stdin=True, stdin_hook=answer)[1]
    same("input", (printed(outputs), asked), ("AdaAda\n", [("name? ", False), ("word? ", True)]))
    same("no input", cell(client, "input()", allow_stdin=False)[0]["ename"], "NotImplementedError")
    reply = client.complete("os.getui", 8, reply=True, timeout=60)["content"]
    same("completion", reply["matches"], ["os.getuid"])
    reply = client.inspect("socket.create_connection", 20, reply=True, timeout=60)["content"]
    same("inspection", "timeout" in reply["data"]["text/plain"], True)
    for code, state in (("x = 1", "complete"), ("for i in x:", "incomplete"), ("1 +* 2", "invalid")):
        client.is_complete(code)
        same("completeness of " + code, client.get_shell_msg(timeout=60)["content"]["status"], state)
    before = manager.provisioner.pid
    manager.restart_kernel()
    client.wait_for_ready(timeout=120)
    reply, outputs = cell(client, "x")
    same("restart", (reply["ename"], manager.provisioner.pid != before), ("NameError", True))
    manager.shutdown_kernel()
    same("shutdown", manager.is_alive(), False)


def of_notebooks():
    nb = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "unitask", "display_name": "x", "language": "python"}})
    sources = ["x = 5\nprint('printed')", "from IPython.display import HTML\nHTML('<b>bold</b><script>alert(1)</script>')",
               "class Picture:\n  def _repr_png_(self): return b'\\x89PNG'\nPicture()", "x * 2"]
    nb.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    NotebookClient(nb, kernel_name="unitask", timeout=120, startup_timeout=120).execute()
    outputs = [cell.outputs[0] for cell in nb.cells]
    same("nbclient", (outputs[0].text, outputs[2].data["image/png"], outputs[3].data["text/plain"]),
         ("printed\n", "iVBORw==", "10"))
    same("HTML", "<script" in outputs[1].data["text/html"] or "sandbox=" not in outputs[1].data["text/html"], False)
    nbformat.validate(nb)
    bad = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("raise ValueError('no')"),
                                          nbformat.v4.new_code_cell("print('never')")])
    try:
        NotebookClient(bad, kernel_name="unitask", timeout=120, startup_timeout=120).execute()
        same("a cell that fails", "no error", "CellExecutionError")
    except CellExecutionError as error:
        same("a cell that fails", error.ename, "ValueError")
    nbformat.write(nb, "book.ipynb")
    subprocess.run([sys.executable, "-m", "jupyter", "execute", "--inplace", "--startup_timeout=120", "book.ipynb"], check=True)
    book = nbformat.read("book.ipynb", 4)
    same("jupyter execute", book.cells[-1].outputs[0].data["text/plain"], "10")


def of_ipython():
    manager, client = start_new_kernel(kernel_name="unitask-ipython", startup_timeout=120)
    outputs = cell(client, "%time 1 + 1")[1]
    same("magic", ["Wall time" in printed(outputs), outputs[-1][1]["data"]["text/plain"]], [True, "2"])
    outputs = cell(client, "h = display(1, display_id=True)\nh.update(2)")[1]
    same("an update", [kind for kind, _ in outputs[1:]], ["display_data", "update_display_data"])
    same("a page", "Signature" in cell(client, "print?")[0]["payload"][0]["data"]["text/plain"], True)
    same("an error", cell(client, "1 / 0")[0]["ename"], "ZeroDivisionError")
    manager.shutdown_kernel()


of_client()
of_notebooks()
of_ipython()
