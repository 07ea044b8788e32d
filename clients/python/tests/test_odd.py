"""Odd servers, odd names, and forks: no machines."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

import unitask
from unitask._async._sessions import AsyncSession
from unitask._functions import FunctionTools
from unitask._sync import _runs
from unitask._sync._files import Files, Values
from unitask._wire import EventReader
from unitask.adapters import _common
from unitask.adapters._common import execute
from unitask.mock import MockServer


def client_of(answer: Callable[[httpx.Request], httpx.Response]) -> unitask.Client:
    return unitask.Client("http://x", transport=httpx.MockTransport(answer))


def test_tokens() -> None:
    with pytest.raises(ValueError, match="control character") as caught:
        unitask.Client("http://127.0.0.1:1", token="one\nSECRET")
    assert "SECRET" not in str(caught.value)


def test_paths_lead_nowhere_else() -> None:
    """Ids, names and paths that others chose do not become other requests."""
    client = unitask.Client(transport=MockServer().transport)
    with client.session() as session:
        for path in ("../../about", "/a/../../..", "%2e%2e/about", "a/.%2E/b", "..", "a/..?x=/b", "..\\a"):
            with pytest.raises(ValueError, match="has . or .. in it"):
                session.request("GET", 80, path)
        assert session.url(80, "/a?from=../b").endswith("/ports/80/a?from=../b")
        for name in ("", ".", ".."):
            with pytest.raises(ValueError, match="not an id or a name"):
                session.values.get(name)
            with pytest.raises(ValueError, match="not an id or a name"):
                client.get_session(name)


def test_another_server() -> None:
    """An answer that is not of unitask, or a redirect, is an error of the package."""
    client = client_of(lambda request: httpx.Response(200, text="<html>"))
    for call in (client.about, client.images, client.questions, lambda: client.run("1")):
        with pytest.raises(unitask.ServerError, match="not of a server of unitask"):
            call()
    moved = client_of(lambda request: httpx.Response(307, headers={"Location": "http://other"}))
    with pytest.raises(unitask.ApiError, match="307"):
        moved.run("1")
    with pytest.raises(unitask.ApiError, match="307"):
        list(moved.events())
    for text in ("id: x\ndata: {}\n\n", "data: {\n\n", "data: []\n\n"):
        with pytest.raises(unitask.ServerError, match="no event"):
            list(EventReader().feed(text))


def test_token_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setenv("UNITASK_TOKEN", "secret\n")

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Authorization"])
        return httpx.Response(200, json={"questions": []})

    client_of(answer).questions()
    assert seen == ["Bearer secret"]


@pytest.mark.parametrize("key", [None, "k"])
def test_broken_stream(key: str | None) -> None:
    """A run with a key goes on if its connection breaks: the next call gets its result."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path.endswith("/events"):
            raise httpx.ReadError("broke")
        return httpx.Response(202, json={"runId": "r", "status": "running"})

    with pytest.raises(unitask.ServerError, match="broke"):
        client_of(answer).run("1", key=key, on_event=print)
    assert ("/v1/runs/r/cancel" in asked) == (key is None)


def test_first_error_stays() -> None:
    """The end of a block does not hide what went wrong in it."""

    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("gone")

    with pytest.raises(KeyError), client_of(answer).get_run("r"):
        raise KeyError
    with pytest.raises(unitask.ServerError), client_of(answer).get_run("r"):
        pass


def test_folder_with_links(tmp_path: pathlib.Path) -> None:
    """Nothing is written through a link, and none leads out."""
    outside = tmp_path / "outside"
    outside.mkdir()

    def folder(*links: tuple[str, str]) -> unitask.Session:
        kept = io.BytesIO()
        with tarfile.open(fileobj=kept, mode="w") as archive:
            for name, to in links:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, to
                archive.addfile(entry)
            entry = tarfile.TarInfo("link/new")
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b"x"))

        mock = MockServer()
        plain = mock.transport.handler

        def answer(request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/tar"):
                return httpx.Response(200, content=kept.getvalue())
            said = plain(request)
            assert isinstance(said, httpx.Response)
            return said

        return client_of(answer).session()

    with pytest.raises(Exception, match="outside the destination|directory"):
        folder(("link", "../outside")).files.download_folder("a", tmp_path / "one")
    assert list(outside.iterdir()) == []
    copied = folder(("here", "link/new")).files.download_folder("a", tmp_path / "two")
    assert (copied / "here").read_text() == "x" and (copied / "here").is_symlink()
    with pytest.raises(FileExistsError):
        folder().files.download_folder("a", tmp_path / "two")


def test_uploaded_folder_names_no_users(tmp_path: pathlib.Path) -> None:
    sent: list[bytes] = []
    mock = MockServer()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/tar"):
            sent.append(request.read())
            return httpx.Response(204)
        said = mock.transport.handler(request)
        assert isinstance(said, httpx.Response)
        return said

    (tmp_path / "a").write_text("x")
    client_of(answer).session().files.upload_folder(tmp_path, "a")
    with tarfile.open(fileobj=io.BytesIO(sent[0])) as archive:
        assert [(one.name, one.uid, one.gid, one.uname, one.gname) for one in archive] == [("a", 0, 0, "", "")]


def test_picture_of_a_closed_client() -> None:
    server = MockServer(lambda request: {"stdout": "text", "out": {"plot.png": b"png"}})
    with unitask.Client(transport=server.transport) as client:
        result = client.run("1")
        assert "image/png" in result._repr_mimebundle_()
    assert result._repr_mimebundle_() == {"text/plain": "text"}


SERVER = """#!{python}
import sys, time
time.sleep(0.5)
print("serving http://127.0.0.1:{port}", file=sys.stderr, flush=True)
sys.stdin.read()
open("ended", "w").close()
"""


@pytest.fixture
def program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A program that says that it serves, and ends with its input."""
    path = tmp_path / "unitask"
    path.write_text(SERVER.format(python=sys.executable, port=1))
    path.chmod(0o755)
    monkeypatch.setenv("UNITASK_BIN", str(path))
    monkeypatch.delenv("UNITASK_URL", raising=False)
    monkeypatch.setattr("unitask._server._server", None)
    monkeypatch.chdir(tmp_path)
    return path


def test_no_leaks(program: pathlib.Path) -> None:
    """A program that uses a server of its own leaves no file or process open."""
    code = "import unitask; s = unitask.LocalServer(); s.close(); s.close(); assert not s.running"
    ran = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", code], capture_output=True, timeout=60)
    assert ran.returncode == 0 and not ran.stderr, ran.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_server_ends_before_forks_of_its_process(program: pathlib.Path, tmp_path: pathlib.Path) -> None:
    code = """
import os, time, unitask
unitask.LocalServer()
if os.fork() == 0:
    for _ in range(300):
        if os.path.exists("ended"): os._exit(0)
        time.sleep(0.1)
    os._exit(1)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
    for _ in range(200):
        if (tmp_path / "ended").exists():
            return
        time.sleep(0.1)
    pytest.fail("the server goes on")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_forks_have_connections_of_their_own() -> None:
    client = unitask.Client(transport=MockServer().transport)
    before = client._http.client
    if (child := os.fork()) == 0:
        os._exit(client._http.client is before)
    assert os.waitpid(child, 0)[1] == 0 and client._http.client is before


async def test_start_does_not_block(program: pathlib.Path) -> None:
    began = time.monotonic()
    async with unitask.AsyncClient(retries=0) as client:
        asked = asyncio.create_task(client.about())
        beats = 0
        while not asked.done():
            await asyncio.sleep(0.01)
            beats += 1
        with pytest.raises(unitask.ServerError, match="127.0.0.1:1 did not answer"):
            await asked
    assert beats > 10 and time.monotonic() - began < 30


def test_results_that_no_server_takes() -> None:
    """Results of functions that are not JSON, or too large, and odd calls are errors of the call, not of the run."""
    said: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        said.append(json.loads(request.content))
        refused = {"code": "usage", "detail": "is too large", "status": 413}
        return httpx.Response(413, json=refused) if len(request.content) > 100_000 else httpx.Response(204)

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def give(what: str) -> object:
        if what == "silent":
            raise Silent
        if what == "half":
            raise OSError("\udcff")
        return {"nan": float("inf"), "text": "\udcff", "large": "x" * 200_000, "object": object()}[what]

    tools = FunctionTools({"shop": [give]})
    http = client_of(answer)._http
    for what, want in {
        "nan": "ValueError",
        "text": "UnicodeEncodeError",
        "large": "ApiError",
        "object": "PydanticSerializationError",
        "silent": "Silent",
        "half": "OSError: ?",
    }.items():
        _runs.call(http, "r", {"call": "1", "server": "shop", "tool": "give", "arguments": {"what": what}}, tools)
        assert str(said[-1].get("error")).startswith(want), said[-1]
    odd: list[dict[str, object]] = [
        {"server": "other", "tool": "give"},
        {"server": [], "tool": "give"},
        {"server": "shop", "tool": "__init__"},
        {"server": "shop", "tool": "give", "arguments": ["nan"]},
        {"server": "shop", "tool": "give", "arguments": {"what": "nan", "self": 1}},
    ]
    for data in odd:
        _runs.call(http, "r", {"call": "../1", "arguments": {}, **data}, tools)
        assert set(said[-1]) == {"error"}, said[-1]


def test_deep_value() -> None:
    """The machine writes values: one of too many levels is an error of the package."""
    deep = client_of(lambda request: httpx.Response(200, text="[" * 200_000))
    with pytest.raises(unitask.ServerError, match="no JSON"):
        Values(deep._http, "s").get("deep")


def test_limits(tmp_path: pathlib.Path) -> None:
    """A file that never ends is read and written up to the limit, and a busy server is asked again."""

    def endless() -> Iterator[bytes]:
        for _ in range(1000):
            yield bytes(1 << 20)
        raise AssertionError("it reads on")

    files = Files(client_of(lambda request: httpx.Response(200, content=endless()))._http, "s")
    for call in (
        lambda: files.read("f", limit=3 << 20),
        lambda: files.download("f", tmp_path / "f", limit=3 << 20),
        lambda: files.download_folder("f", tmp_path / "folder", limit=3 << 20),
    ):
        with pytest.raises(unitask.TooLargeError, match="more than 3145728 bytes"):
            call()
    assert (tmp_path / "f").stat().st_size <= 3 << 20 and not (tmp_path / "folder").exists()
    answers = [httpx.Response(429, json={"code": "busy", "retryable": True, "retryAfterMs": 1})]
    answers.append(httpx.Response(200, content=b"now"))
    assert Files(client_of(lambda request: answers.pop(0))._http, "s").read("f", limit=3) == b"now"


async def test_command_that_begins_late() -> None:
    """A program that is there only at the second try has the time limit, too."""
    seen: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        if request.url.params.get("wait") == "false":
            return httpx.Response(409, json={"code": "cancelled", "detail": "it ended before it began"})
        ended = {"runId": "r", "session": "s", "outcome": "timeout", "exitCode": 124, "durationMs": 1, "hints": []}
        return httpx.Response(200, json={**ended, "stdout": "", "stderr": "", "truncated": True})

    async with unitask.AsyncClient("http://x", transport=httpx.MockTransport(answer)) as client:
        ended = await execute(AsyncSession(client._http, _state()), ["late"], timeout=2)
    assert ended.timed_out and ended.truncated
    assert seen[1]["timeoutSeconds"] == 2


def test_fork_ends_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process that exits leaves the session to its parent."""
    asked: list[str] = []

    def client_that_tells(url: str, *args: object, **options: object) -> unitask.Client:
        asked.append(url)
        return client

    monkeypatch.setattr(_common, "Client", client_that_tells)
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", ends.append)

    class Owner:
        pass

    owner = Owner()
    client = client_of(lambda request: httpx.Response(204))
    _common.end_with(owner, unitask.Session(client._http, _state()))
    with monkeypatch.context() as forked:
        forked.setattr("os.getpid", lambda: -1)
        ends[0]()
    assert asked == []


def _state() -> Any:
    return type("State", (), {"id": "s"})()
