"""The mock: users' tests need no machine. Also what the client does with odd answers."""

from __future__ import annotations

import time

import httpx
import pytest

import unitask
from unitask._wire import EventReader, camel
from unitask.mock import MockServer


def test_runs() -> None:
    server = MockServer(lambda request: {"stdout": "hi", "out": {"a.txt": b"x"}} if request["code"] == "1" else 3)
    client = unitask.Client(transport=server.transport)
    result = client.run("1", memory_mb=128)
    assert result.stdout == "hi" and result.artifact("a.txt").read() == b"x"
    assert server.requests == [{"code": "1", "language": "python", "memoryMb": 128}]
    seen: list[str] = []
    result = client.run("2", on_event=lambda event: seen.append(event.kind))
    assert result.exit_code == 3 and seen == ["begun", "started", "end"]
    with pytest.raises(unitask.ApiError, match="unitask.mock has no GET /v1/doctor"):
        client.doctor()


def test_sessions() -> None:
    server = MockServer(lambda request: {"value": "42"})
    client = unitask.Client(transport=server.transport)
    with client.session(files={"a": "b"}) as session:
        assert session.run("6 * 7").value == "42" and session.files.read("a") == b"b"
        session.files.write("c/d", "e")
        session.values.set("n", [1])
        with session.fork()[0] as fork:
            session.files.remove("c")
            assert fork.files.read_text("c/d") == "e" and fork.values.get("n") == [1]
        assert [one.path for one in session.files.list()] == ["/work/a"]
        assert session.start("true").result().ok
    with pytest.raises(unitask.NotFoundError, match="no session"):
        session.run("1")
    assert server.sessions == {}


async def test_async() -> None:
    async with unitask.AsyncClient(transport=MockServer(lambda _: "out").transport) as client:
        assert (await client.run("1")).stdout == "out"


def test_busy() -> None:
    """A busy server is asked again, and a request that it refuses is not."""
    answers = [httpx.Response(429, json={"code": "busy", "retryable": True, "retryAfterMs": 1})] * 2
    answers.append(httpx.Response(422, json={"code": "usage", "detail": "no", "retryable": False}))
    client = unitask.Client(transport=httpx.MockTransport(lambda request: answers.pop(0)))
    with pytest.raises(unitask.ApiError, match="no"):
        client.about()
    answers += [httpx.Response(429, json={"retryable": True, "retryAfterMs": 3600_000})]
    with pytest.raises(unitask.BusyError) as caught:
        client.about()
    assert caught.value.retry_after == 3600
    answers += [httpx.Response(502, text="<html>")]
    with pytest.raises(unitask.ApiError, match="502"):
        client.about()


def test_patience() -> None:
    """A server that does not wait for a run is not asked without a pause."""
    begun = time.monotonic()
    running = {"code": "run.running", "retryable": True, "retryAfterMs": 100}
    answers = [httpx.Response(409, json=running), httpx.Response(409, json=running)]
    done = MockServer(lambda request: "done")
    run = unitask.Client(transport=done.transport).run("1")

    def answer(request: httpx.Request) -> httpx.Response:
        return answers.pop(0) if answers else done.transport.handle_request(request)

    result = unitask.Client(transport=httpx.MockTransport(answer)).get_run(run.run_id).result()
    assert result.stdout == "done" and time.monotonic() - begun >= 0.2


def test_events() -> None:
    text = ': beat\r\n\r\nid: 7\r\nevent: stdout\r\ndata: {"text":\r\ndata: "é"}\r\n\r\nevent: end\ndata: {}\n\n'
    for size in (1, 3, len(text)):
        reader = EventReader()
        seen = [event for at in range(0, len(text), size) for event in reader.feed(text[at : at + size])]
        assert [(one.number, one.kind, one.text) for one in seen] == [(7, "stdout", "é"), (7, "end", "")]
    with pytest.raises(unitask.ServerError, match="too large"):
        for _ in range(20):
            list(reader.feed("data: " + "x" * 1_000_000))
    assert camel("max_upload_bytes") == "maxUploadBytes"


def test_generated() -> None:
    """The synchronous and the asynchronous classes have the same methods."""
    for name in ("Client", "Session", "Run", "Task", "Files", "Values", "Artifact"):
        one, other = getattr(unitask, name), getattr(unitask, "Async" + name)
        same = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}
        renamed = {same.get(method, method) for method in dir(other)}
        assert {method for method in dir(one)} == renamed, name
