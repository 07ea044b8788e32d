"""deepagents: LangChain's own tests of backends, and an agent with a model that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from deepagents import create_deep_agent
from deepagents.backends.protocol import ExecuteResponse
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

import unitask
from unitask.adapters import deepagents as adapter
from unitask.adapters.deepagents import UnitaskSandbox

# These tests expect relative paths of glob, and a write that does not replace a file. BaseSandbox of the tested version
# does otherwise, whatever the backend.
UPSTREAM = {
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_directories",
    "test_glob_with_question_mark",
    "test_write_existing_file_fails",
}


class TestStandard(SandboxIntegrationTests):
    """LangChain's tests, as they are."""

    @pytest.fixture(scope="class")
    def sandbox(self, client: unitask.Client) -> Iterator[UnitaskSandbox]:
        with UnitaskSandbox(client.session("shell", image="base")) as one:
            yield one

    @pytest.fixture(autouse=True)
    def known(self, request: pytest.FixtureRequest) -> None:
        if request.node.name in UPSTREAM:
            request.applymarker(pytest.mark.xfail(reason="BaseSandbox does otherwise", strict=True))


class Script(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def call(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{name}"}])


def test_readme(example: str) -> None:
    exec(compile(example, "README.md", "exec"), {})


def test_agent(client: unitask.Client) -> None:
    answers = [
        call(
            "write_file",
            file_path="/work/primes.py",
            content="print([n for n in range(2, 20) if all(n % m for m in range(2, n))])",
        ),
        call("execute", command="python3 primes.py | tee out.txt; false"),
        call("read_file", file_path="/work/out.txt"),
        AIMessage("done"),
    ]
    with UnitaskSandbox(client.session("shell", image="base")) as backend:
        agent = create_deep_agent(model=Script(messages=iter(answers)), backend=backend)
        said = agent.invoke({"messages": [HumanMessage("List the primes below 20.")]})["messages"]
        told = [str(one.content) for one in said if isinstance(one, ToolMessage)]
        assert "[2, 3, 5, 7, 11, 13, 17, 19]" in told[1] and "exit code 1" in told[1], told
        assert "[2, 3, 5, 7, 11, 13, 17, 19]" in told[2], told


def test_execute(client: unitask.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with UnitaskSandbox(client.session("shell", image="base")) as backend:
        assert backend.execute("pwd; echo e >&2; exit 7") == ExecuteResponse("/work\ne\n", 7, False)
        late = backend.execute("echo before; sleep 30", timeout=1)
        assert late.exit_code == 124 and late.output.startswith("before\n"), late
        much = backend.execute("yes | head -c 3000000")
        assert much.truncated and 100_000 < len(much.output) < 3_000_000
        backend.execute("head -c 2000 /dev/zero > big")
        monkeypatch.setattr(adapter, "MAX_FILE", 1000)
        (big,) = backend.download_files(["/work/big"])
        assert big.content is None and "too large" in str(big.error)


def test_machine_ends(client: unitask.Client, ends: Callable[[str], None]) -> None:
    backend = UnitaskSandbox(client.session("shell", image="base"))
    id = backend.id
    del backend
    ends(id)


def test_close_fails() -> None:
    """A machine that could not be ended yet is not forgotten."""
    answers = [httpx.Response(503, json={"code": "x", "detail": "no", "retryable": False}), httpx.Response(204)]
    client = unitask.Client("http://x", transport=httpx.MockTransport(lambda request: answers.pop(0)))
    forgotten: list[int] = []
    session = unitask.Session(client._http, type("State", (), {"id": "s"})())
    backend = UnitaskSandbox(session)
    forget = backend._forget
    backend._forget = lambda: forgotten.append(forget() or 1)
    with pytest.raises(unitask.UnitaskError):
        backend.close()
    assert forgotten == []
    backend.close()
    assert forgotten == [1]
