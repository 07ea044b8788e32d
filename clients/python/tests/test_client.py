"""The synchronous client, with real machines."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

import unitask


def test_run(client: unitask.Client) -> None:
    result = client.run("print(6 * 7)")
    assert result.ok and result.stdout == "42\n" and result.check() is result
    assert result.outcome == "exited" and result.run_id and result.policy.denials == []


def test_shared_client() -> None:
    assert unitask.run("console.log(6 * 7)", "js").stdout == "42\n"


def test_options(client: unitask.Client) -> None:
    result = client.run(
        "import os, sys; print(open('in.txt').read(), os.environ['A'], sys.argv[1:], sys.stdin.read())",
        files={"in.txt": "content"},
        env={"A": "b"},
        args=["x y"],
        stdin="input",
        timeout=20,
        memory_mb=512,
    )
    assert result.stdout == "content b ['x y'] input\n", result.stderr


def test_failing_code(client: unitask.Client) -> None:
    result = client.run("import sys; print('no', file=sys.stderr); sys.exit(3)")
    assert not result.ok and result.exit_code == 3
    with pytest.raises(unitask.CodeError, match="exit code 3: no") as caught:
        result.check()
    assert caught.value.result is result
    result = client.run("while True: pass", timeout=1)
    assert result.outcome == "timeout" and not result.ok


def test_bytes(client: unitask.Client) -> None:
    result = client.run("import sys; sys.stdout.buffer.write(bytes([0, 255, 10]))")
    assert result.stdout_bytes == b"\x00\xff\n"


def test_artifacts(client: unitask.Client, tmp_path: object) -> None:
    result = client.run("import os; os.makedirs('/out/a b'); open('/out/a b/é.txt', 'w').write('x' * 10)")
    assert [one.path for one in result.artifacts] == ["a b/é.txt"]
    assert result.artifact("a b/é.txt").read() == b"x" * 10
    saved = result.artifacts[0].save(os.path.join(str(tmp_path), "copy"))
    assert saved.read_bytes() == b"x" * 10
    with pytest.raises(KeyError):
        result.artifact("other")
    assert [one.path for one in client.get_run(result.run_id).artifacts()] == ["a b/é.txt"]


def test_notebook(client: unitask.Client) -> None:
    png = "b'\\x89PNG\\r\\n\\x1a\\n'"
    shown = client.run(f"print('text'); open('/out/plot.png', 'wb').write({png})")._repr_mimebundle_()
    assert shown["text/plain"] == "text\n" and shown["image/png"] == "iVBORw0KGgo="


def test_events(client: unitask.Client) -> None:
    seen: list[tuple[str, str]] = []
    code = "import time\nfor i in range(3): print(i, flush=True); time.sleep(0.1)"
    result = client.run(code, on_event=lambda event: seen.append((event.kind, event.text)))
    assert result.stdout == "0\n1\n2\n"
    assert "".join(text for kind, text in seen if kind == "stdout") == "0\n1\n2\n"
    assert seen[-1][0] == "end"


def test_functions(client: unitask.Client) -> None:
    """The code calls functions of this program."""
    calls: list[tuple[str, int]] = []

    def stock(name: str, at: int = 3) -> list[str]:
        """Lists what is there."""
        calls.append((name, at))
        return [name] * at

    code = """
from unitask_tools import shop, ToolError
print(shop.stock(name="a"), shop.stock(name="b", at=1))
for wrong in ({"name": 1}, {}, {"name": "x", "other": 1}):
    try: shop.stock(**wrong)
    except ToolError as err: print(err.code)
try: shop.fails()
except ToolError as err: print(err.code, err)
try: shop.huge()
except ToolError as err: print(err.code)
"""
    functions = {"shop": {"stock": stock, "fails": lambda: 1 / 0, "huge": lambda: "x" * (5 << 20)}}
    result = client.run(code, functions=functions)
    assert result.stdout == (
        "['a', 'a', 'a'] ['b']\narguments\narguments\narguments\ntool ZeroDivisionError: division by zero\nlarge\n"
    ), result.stdout + result.stderr
    assert calls == [("a", 3), ("b", 1)]
    with pytest.raises(unitask.ApiError, match="class"):
        client.run("1", functions={"class": [stock]})


def test_functions_of_a_session(client: unitask.Client) -> None:
    """The code of each step calls functions of this program, also after a pause."""
    calls: list[int] = []

    def twice(n: int) -> int:
        calls.append(n)
        return 2 * n

    with client.session(functions={"shop": [twice]}) as session:
        assert session.run("from unitask_tools import shop\nshop.twice(n=1)").value == "2"
        session.pause()
        assert session.run("shop.twice(n=2)").value == "4"
        assert session.exec("unitask-tool", "shop.twice", '{"n": 3}').stdout.strip() == "6"
        answering = session._answering
    assert calls == [1, 2, 3]
    assert isinstance(answering, threading.Thread) and not answering.is_alive()


def test_functions_after_lost_events(client: unitask.Client) -> None:
    """A call is answered although the server dropped its event, since this program was busy."""
    run, kinds = "", set[str]()

    def busy(event: unitask.Event) -> None:
        nonlocal run
        kinds.add(event.kind)
        if event.kind == "begun":
            run = event.data["runId"]
        if event.kind == "started":
            while len(client._http.send("GET", f"/v1/runs/{run}/calls").json()["calls"]) < 2:
                time.sleep(0.1)

    code = """
import threading, time
from unitask_tools import shop
mebibyte, got = "x" * (1 << 20), []
for _ in range(12): print(mebibyte)
first = threading.Thread(target=lambda: got.append(shop.twice(n=1)))
first.start()
time.sleep(1)
for _ in range(2): print(mebibyte, flush=True)
got.append(shop.twice(n=2))
first.join()
open("/out/got", "w").write(str(sorted(got)))
"""
    calls: list[int] = []

    def twice(n: int) -> int:
        calls.append(n)
        return 2 * n

    result = client.run(code, functions={"shop": [twice]}, on_event=busy)
    assert sorted(calls) == [1, 2] and "lost" in kinds
    assert result.artifact("got").read() == b"[2, 4]", result.stderr


def test_start_and_cancel(client: unitask.Client) -> None:
    began = time.monotonic()
    with client.start("import time; print('up', flush=True); time.sleep(60)", timeout=90) as run:
        for event in run.events():
            if event.kind == "stdout":
                assert run.stdout() == b"up\n"
                break
    result = run.result()
    assert result.outcome == "cancelled" and time.monotonic() - began < 40
    assert run.record().id == run.id
    assert run.id in [one.id for one in client.runs()]


def test_question(client: unitask.Client) -> None:
    asked: list[str] = []

    def deny(question: unitask.Question) -> str:
        asked.append(question.host)
        return "deny"

    code = "import urllib.request\ntry: urllib.request.urlopen('http://example.com')\nexcept Exception: print('no')"
    result = client.run(code, ask=["example.com"], on_question=deny, timeout=50)
    assert result.stdout == "no\n", result
    assert asked and asked[0] == "example.com:80"


def test_key(client: unitask.Client) -> None:
    key = os.urandom(8).hex()
    first = client.run("import time; print(time.time())", key=key)
    assert client.run("import time; print(time.time())", key=key).run_id == first.run_id
    with pytest.raises(unitask.ApiError) as caught:
        client.run("print(1)", key=key)
    assert caught.value.code == "idempotency.mismatch"


def test_errors(client: unitask.Client) -> None:
    with pytest.raises(unitask.ApiError, match="cobol") as caught:
        client.run("DISPLAY 1", "cobol")
    assert caught.value.status == 422 and caught.value.remedy and not caught.value.retryable
    with pytest.raises(unitask.NotFoundError):
        client.get_run("20260101-000000000-abcdef").result()
    with pytest.raises(TypeError, match="a list of texts"):
        client.run("", allow_net="example.com")
    with pytest.raises(unitask.ApiError, match="nonsense"):
        client.run("1", nonsense=1)
    with unitask.Client("http://127.0.0.1:1") as nobody, pytest.raises(unitask.ServerError, match="127.0.0.1:1"):
        nobody.about()


def test_server(client: unitask.Client) -> None:
    about = client.about()
    assert "python" in about.languages and client.doctor().ok
    assert "python" in [image.name for image in client.images()]
    assert client.questions() == []


@pytest.mark.skipif("UNITASK_URL" in os.environ, reason="the server is another one")
def test_server_ends_with_its_process() -> None:
    code = "import os, unitask; c = unitask.Client(); print(c.url, flush=True); os.kill(os.getpid(), 9)"
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=60).stdout.strip()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            with unitask.Client(said, retries=0) as other:
                other.about()
            time.sleep(0.1)
        except unitask.ServerError:
            return
    pytest.fail(f"{said} still answers")


def test_program_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNITASK_BIN", "/nonexistent/unitask")
    with pytest.raises(unitask.ServerError, match="/nonexistent/unitask"):
        unitask.LocalServer()
    monkeypatch.setenv("UNITASK_BIN", "/bin/false")
    with pytest.raises(unitask.ServerError, match="did not start"):
        unitask.LocalServer()
