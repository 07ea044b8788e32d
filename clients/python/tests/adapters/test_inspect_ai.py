"""Inspect: its own checks of sandboxes, and an evaluation with a model that follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import Model, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import basic_agent
from inspect_ai.tool import bash, python
from inspect_ai.util import SandboxEnvironmentSpec, SandboxUnavailableError, SandboxUserUnsupportedError
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

import unitask
from unitask.adapters.inspect_ai import UnitaskSandboxConfig, UnitaskSandboxEnvironment

pytestmark = pytest.mark.asyncio(loop_scope="module")

FAILING = {
    "test_exec_as_user": "the users are user and root, and the image has no adduser",
    "test_exec_large_command": "a command's arguments have 256 KiB at most",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine() -> AsyncIterator[UnitaskSandboxEnvironment]:
    one = await UnitaskSandboxEnvironment.start(UnitaskSandboxConfig(root=True))
    yield one
    await one.aclose()


@pytest.fixture
def sandbox_env(machine: UnitaskSandboxEnvironment, request: pytest.FixtureRequest) -> UnitaskSandboxEnvironment:
    """The machine of Inspect's checks, marked as their module says."""
    if why := FAILING.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    return machine


def script(*answers: ModelOutput) -> Model:
    """Returns a model whose answers are known. With a usage, Inspect need not count tokens."""
    for answer in answers:
        answer.usage = ModelUsage(input_tokens=1, output_tokens=1)
    return get_model("mockllm/model", custom_outputs=answers)


async def test_readme(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example.replace("eval(", "later = dict("), "README.md", "exec"), names)
    names["later"]["model"] = script(
        ModelOutput.for_tool_call("mockllm/model", "bash", {"cmd": "uname"}),
        ModelOutput.for_tool_call("mockllm/model", "submit", {"answer": "Linux"}),
    )
    (log,) = await eval_async(**names["later"])
    assert log.status == "success", log.error


async def test_evaluation(tmp_path: Path, client: unitask.Client, machine: UnitaskSandboxEnvironment) -> None:
    """Inspect's example of a sandbox: the model lists files, and runs Python."""
    model = script(
        ModelOutput.for_tool_call("mockllm/model", "bash", {"cmd": "ls; cat secret/code.txt"}),
        ModelOutput.for_tool_call("mockllm/model", "python", {"code": "print(open('secret/code.txt').read()[::-1])"}),
        ModelOutput.for_tool_call("mockllm/model", "submit", {"answer": "4711"}),
    )
    task = Task(
        dataset=[Sample("What is the code backwards?", target="4711", files={"secret/code.txt": "1174"})],
        solver=basic_agent(tools=[bash(timeout=30), python(timeout=30)]),
        scorer=includes(),
        sandbox=SandboxEnvironmentSpec("unitask", UnitaskSandboxConfig(memory_mb=768)),
    )
    (log,) = await eval_async(task, model=model, log_dir=str(tmp_path))
    assert log.status == "success", log.error
    assert log.results and log.results.scores[0].metrics["accuracy"].value == 1.0
    assert log.samples and "4711" in str([m.content for m in log.samples[0].messages if m.role == "tool"])
    machines = [one for one in client.sessions() if one.id != machine.session.id]
    assert machines == []


async def test_users() -> None:
    one = await UnitaskSandboxEnvironment.start()
    try:
        assert (await one.exec(["id", "-un"])).stdout == "user\n"
        with pytest.raises(SandboxUserUnsupportedError, match="root=True"):
            await one.exec(["id"], user="root")
        assert (await one.exec(["no-such-program"])).returncode == 127
        await one.session.aclose()
        with pytest.raises(SandboxUnavailableError):
            await one.exec(["true"])
    finally:
        await one.aclose()


async def test_cancelled(ends: Callable[[str], None]) -> None:
    one = await UnitaskSandboxEnvironment.start()
    with anyio.move_on_after(2):
        await one.exec(["sh", "-c", "sleep 77; :"])
    for _ in range(50):
        left = (await one.exec(["sh", "-c", "ps aux | grep 'sleep 7[7]'"])).stdout
        if not left:
            break
        await anyio.sleep(0.2)
    assert left == ""
    id = one.session.id
    del one
    ends(id)


async def test_no_image() -> None:
    with pytest.raises(unitask.ApiError, match="nothing"):
        await UnitaskSandboxEnvironment.start("nothing")
