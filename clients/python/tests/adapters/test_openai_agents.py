"""The OpenAI Agents SDK: an agent with a model that follows a script, and the parts of a workspace."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agents import ModelResponse, Runner, Usage
from agents.models.interface import Model
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    InvalidManifestPathError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.snapshot import LocalSnapshotSpec
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import unitask
from unitask.adapters import openai_agents
from unitask.adapters.openai_agents import UnitaskSandboxClient, UnitaskSandboxClientOptions
from unitask.mock import MockServer


@pytest.fixture
async def sandboxes(async_client: unitask.AsyncClient) -> AsyncIterator[UnitaskSandboxClient]:
    yield UnitaskSandboxClient(async_client)


class Script(Model):
    """A model whose answers are known."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        self.seen.append(input)
        return ModelResponse(output=[self.answers.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def call(id: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        type="function_call", name="exec_command", call_id=id, arguments=json.dumps(arguments)
    )


def say(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[content])


async def test_readme(example: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(example.replace("asyncio.run(main())", ""), "README.md", "exec"), names)
    await names["main"]()


async def test_agent(sandboxes: UnitaskSandboxClient, ends: Callable[[str], None]) -> None:
    model = Script(call("c1", cmd="cat notes/orders.csv; wc -l < notes/orders.csv"), say("3 orders"))
    orders = File(content=b"1,a\n2,b\n3,c\n")
    agent = SandboxAgent(
        name="clerk",
        model=model,
        instructions="Count.",
        default_manifest=Manifest(entries={"notes/orders.csv": orders}),
    )
    done = await Runner.run(agent, "How many?", run_config=RunConfig(sandbox=SandboxRunConfig(client=sandboxes)))
    assert done.final_output == "3 orders"
    assert "2,b" in str(model.seen[1][-1]["output"])
    assert await sandboxes.client.sessions() == []


async def test_workspace(sandboxes: UnitaskSandboxClient) -> None:
    manifest = Manifest(entries={"notes/hello.txt": File(content=b"hello\n")})
    async with await sandboxes.create(manifest=manifest) as session:
        got = await session.exec("cat notes/hello.txt; pwd; echo $0 >&2; exit 3")
        assert (got.stdout, got.stderr, got.exit_code) == (b"hello\n/work\n", b"sh\n", 3)
        content = bytes(range(256)) * 10
        await session.write(Path("deep/x.bin"), io.BytesIO(content))
        assert (await session.read(Path("deep/x.bin"))).read() == content
        assert (await session.exec("head -c 3000000 /dev/zero")).stdout == bytes(3_000_000)
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("none"))
        with pytest.raises(WorkspaceArchiveReadError):
            await session.read(Path("deep"))
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.write(Path("deep"), io.BytesIO(b""))
        with pytest.raises(InvalidManifestPathError):
            await session.read(Path("../etc/passwd"))
        await session.exec("ln -s /etc/passwd out")
        with pytest.raises(InvalidManifestPathError):
            await session.read(Path("out"))
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 30", timeout=1)
        assert [one.path for one in await session.ls("notes")] != []
        await session.exec("rm out")
        saved = (await session.persist_workspace()).read()
        await session.exec("rm -rf notes deep")
        await session.hydrate_workspace(io.BytesIO(saved))
        assert (await session.read(Path("deep/x.bin"))).read() == content
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.hydrate_workspace(io.BytesIO(b"no tar"))
        assert await session.running()
    assert not await session.running()
    with pytest.raises(ExecTransportError):
        await session.exec("true")


async def test_environment_and_root(sandboxes: UnitaskSandboxClient) -> None:
    options = UnitaskSandboxClientOptions(session={"root": True, "env": {"A": "1"}})
    async with await sandboxes.create(options=options) as session:
        got = await session.exec("echo $A; id -un", user="root")
        assert got.stdout.endswith(b"root\n"), got
        assert (await session.exec("echo $A; id -un")).stdout == b"1\nuser\n"


async def test_resume(sandboxes: UnitaskSandboxClient, tmp_path: Path) -> None:
    session = await sandboxes.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await session.start()
    await session.write(Path("kept.txt"), io.BytesIO(b"kept"))
    await session.exec("sleep 300 & echo $! > /tmp/pid")
    state = sandboxes.deserialize_session_state(sandboxes.serialize_session_state(session.state))
    again = await sandboxes.resume(state)  # the same machine
    async with again:
        assert (await again.exec("test -e /tmp/pid && cat kept.txt")).stdout == b"kept"
    state = sandboxes.deserialize_session_state(sandboxes.serialize_session_state(again.state))
    async with await sandboxes.resume(state) as new:  # a new one, from the snapshot
        assert (await new.exec("cat kept.txt; ls /tmp/pid")).stdout == b"kept"


async def test_machine_ends(sandboxes: UnitaskSandboxClient, ends: Callable[[str], None]) -> None:
    session = await sandboxes.create()
    id = session.state.model_dump()["machine"]
    await sandboxes.delete(session)
    ends(id)
    session = await sandboxes.create()
    id = session.state.model_dump()["machine"]
    del session
    ends(id)


def _tar(count: int, mode: str = "w") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as tar:  # type: ignore[call-overload]
        for at in range(count):
            tar.addfile(tarfile.TarInfo(f"f{at}"))
    return made.getvalue()


def _chain() -> bytes:
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 1
    return (name.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 20_000


@pytest.mark.parametrize("content", [_tar(9), _tar(1, "w:gz"), _chain()], ids=["many", "gzip", "chain"])
async def test_hostile_snapshot(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace comes back from a machine: its tar must be small to check, and its errors are the SDK's."""
    monkeypatch.setattr(openai_agents, "MAX_MEMBERS", 8)
    async with unitask.AsyncClient(transport=MockServer().transport) as client:
        sandbox = await UnitaskSandboxClient(client).create()
        with pytest.raises(WorkspaceArchiveWriteError) as caught:
            await sandbox.hydrate_workspace(io.BytesIO(content))
        assert not isinstance(caught.value.cause, unitask.UnitaskError)
        await sandbox.shutdown()
