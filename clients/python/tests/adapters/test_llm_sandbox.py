"""llm-sandbox: the examples of its README with the backend unitask."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from llm_sandbox import SandboxSession
from llm_sandbox.exceptions import (
    LanguageNotSupportedError,
    LibraryInstallationNotSupportedError,
    NotOpenSessionError,
    SandboxTimeoutError,
    SecurityError,
)

import unitask
from unitask.adapters.llm_sandbox import UnitaskSession


def test_readme(example: str) -> None:
    exec(compile(example, "README.md", "exec"), {})


def test_run(client: unitask.Client, tmp_path: Path) -> None:
    with SandboxSession(backend="unitask", lang="python", client=client) as session:
        assert isinstance(session, UnitaskSession)
        done = session.run("import sys\nprint('hé')\nprint('e', file=sys.stderr)\nsys.exit(3)")
        assert (done.stdout, done.stderr, done.exit_code) == ("hé\n", "e\n", 3)
        parts: list[str] = []
        code = "import time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(0.2)"
        assert session.run(code, on_stdout=parts.append).stdout == "0\n1\n2\n" == "".join(parts)
        assert len(session.run("print('y' * 2_000_000)").stdout) == 2_000_001
        (tmp_path / "in.csv").write_text("b\na\n")
        session.copy_to_runtime(str(tmp_path / "in.csv"), "/work/data/in.csv")
        assert session.execute_command("sort data/in.csv > out.csv; cat out.csv").stdout == "a\nb\n"
        session.copy_from_runtime("/work/out.csv", str(tmp_path / "back" / "out.csv"))
        assert (tmp_path / "back" / "out.csv").read_text() == "a\nb\n"
        session.copy_from_runtime("/work/data", str(tmp_path / "data"))
        assert (tmp_path / "data" / "in.csv").read_text() == "b\na\n"
        with pytest.raises(FileNotFoundError):
            session.copy_from_runtime("/work/none", str(tmp_path / "none"))
        with pytest.raises(SecurityError):
            session.copy_to_runtime(str(tmp_path / "in.csv"), "/work/../etc/x")
        with pytest.raises(LibraryInstallationNotSupportedError):
            session.run("1", libraries=["six"])
        with SandboxSession(backend="unitask", client=client, container_id=session.container.id) as again:
            assert again.execute_command("cat out.csv").stdout == "a\nb\n"
        assert session.execute_command("true").exit_code == 0
    with pytest.raises(NotOpenSessionError):
        session.run("1")


def test_javascript(client: unitask.Client) -> None:
    with SandboxSession(backend="unitask", lang="javascript", client=client) as session:
        assert session.run("console.log(6 * 7)").stdout == "42\n"
    with pytest.raises(LanguageNotSupportedError):
        SandboxSession(backend="unitask", lang="r", client=client)


def test_time_limit_ends_machine(client: unitask.Client, ends: Callable[[str], None]) -> None:
    with SandboxSession(backend="unitask", lang="python", client=client) as session:
        id = session.container.id
        with pytest.raises(SandboxTimeoutError):
            session.run("import time; time.sleep(60)", timeout=2)
        ends(id)


def test_machine_ends(client: unitask.Client, ends: Callable[[str], None]) -> None:
    session = SandboxSession(backend="unitask", client=client)
    session.open()
    id = session.container.id
    del session
    ends(id)


def test_timeout_in_another_session(client: unitask.Client) -> None:
    """A command that took too long ends also in a session that lives on."""
    with client.session("python") as machine:
        with SandboxSession(backend="unitask", client=client, container_id=machine.id) as session:
            with pytest.raises(SandboxTimeoutError):
                session.run("while True: pass", timeout=5)
        until = time.monotonic() + 20
        while machine.commands():
            assert time.monotonic() < until, "the command runs on"
            time.sleep(0.2)
