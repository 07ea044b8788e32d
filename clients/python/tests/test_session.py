"""Sessions, with real machines."""

from __future__ import annotations

import json
import pathlib
import time

import pytest

import unitask


def test_steps(session: unitask.Session) -> None:
    session.run("x = 6 * 7").check()
    result = session.run("print('hello'); x")
    assert (result.value, result.stdout, result.ok) == ("42", "hello\n", True)
    assert not session.run("1 / 0").ok
    assert session.run("open('in.txt').read()", files={"in.txt": "content"}).value == "'content'"


def test_commands(session: unitask.Session) -> None:
    result = session.exec("sort", stdin="b\na\n", env={"LC_ALL": "C"})
    assert result.stdout == "a\nb\n"
    assert session.exec("no-such-program").exit_code == 127
    assert session.exec("pwd", dir="/tmp").stdout == "/tmp\n"


def test_background(session: unitask.Session) -> None:
    task = session.start("cat", interactive=True)
    assert task.pid > 0 and task.id in [one.run_id for one in session.commands()]
    task.write("one\n")
    task.write(b"\xff\n")
    task.close_stdin()
    seen = b"".join(event.bytes for event in task.events() if event.kind == "stdout")
    assert seen == b"one\n\xff\n" and task.result().ok
    task = session.start("sleep", "60")
    task.signal("SIGTERM")
    assert task.result().outcome == "signaled"
    task = session.start_run("import time; print('up', flush=True); time.sleep(60)")
    task.cancel()
    assert not task.result().ok


def test_terminal_size(session: unitask.Session) -> None:
    task = session.start("sh", "-c", "read x; stty size", interactive=True, terminal=(100, 30))
    task.resize(120, 40)
    task.write("\n")
    assert "40 120" in "".join(event.text for event in task.events())


def test_files(session: unitask.Session, tmp_path: pathlib.Path) -> None:
    files = session.files
    assert files.write("data/é b.txt", "text", mode="0640").path == "/work/data/é b.txt"
    assert files.read_text("data/é b.txt") == "text" and files.stat("data/é b.txt").mode == "0640"
    files.mkdir("data/more")
    files.move("data/é b.txt", "data/more/c.txt")
    assert sorted(one.path for one in files.list("data", depth=2)) == ["/work/data/more", "/work/data/more/c.txt"]
    assert files.download("data/more/c.txt", tmp_path / "c").read_text() == "text"
    (tmp_path / "big").write_bytes(b"x" * 3_000_000)
    assert files.upload(tmp_path / "big", "big").size == 3_000_000
    files.download_folder("data", tmp_path / "folder")
    assert (tmp_path / "folder" / "more" / "c.txt").read_text() == "text"
    files.upload_folder(tmp_path / "folder", "again")
    assert files.read("again/more/c.txt") == b"text"
    files.remove("data")
    with pytest.raises(unitask.NotFoundError, match="data"):
        files.stat("data")


def test_watch(session: unitask.Session) -> None:
    session.files.mkdir("watched")
    for event in session.files.watch("watched"):
        if event.kind == "ready":
            session.exec("touch", "watched/a")
        else:
            assert (event.kind, event.data) == ("change", {"kind": "create", "name": "a"})
            return


def test_values(session: unitask.Session) -> None:
    session.values.set("limits", {"retries": [3, None]})
    assert session.values.get("limits") == {"retries": [3, None]} and "limits" in session.values.names()
    with pytest.raises(unitask.NotFoundError):
        session.values.get("missing")


def test_port(session: unitask.Session) -> None:
    session.files.write("site/index.html", "<p>hi")
    session.start("python3", "-m", "http.server", "8123", "--directory", "site")
    for _ in range(200):
        answer = session.request("GET", 8123, "index.html")
        if answer.status_code != 502:  # it listens
            break
        time.sleep(0.1)
    assert answer.text == "<p>hi" and session.url(8123).endswith("/ports/8123/")


def test_life(client: unitask.Client, session: unitask.Session) -> None:
    session.run("y = 1").check()
    forks = session.fork(2)
    for number, fork in enumerate(forks):
        with fork:
            assert fork.run(f"y += {number}; y").value == str(1 + number)
            assert fork.info().parent == session.id
    session.pause()
    assert session.info().paused
    assert session.run("y").value == "1"
    assert session.extend(3600).id == session.id
    assert session.id in [one.id for one in client.sessions()]
    assert client.get_session(session.id).run("y").value == "1"
    with pytest.raises(unitask.NotFoundError):
        forks[0].run("y")
    forks[0].close()


def test_terminal(session: unitask.Session) -> None:
    pytest.importorskip("websockets")
    with session.terminal("echo from $((6 * 7)); exit 5") as terminal:
        seen = list(terminal)
    assert b"from 42" in b"".join(one for one in seen if isinstance(one, bytes))
    assert json.loads(seen[-1]) == {"exitCode": 5}
