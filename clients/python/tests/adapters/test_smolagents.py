"""smolagents, with a model that follows a script."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from smolagents import CodeAgent, Model, Tool, tool
from smolagents.default_tools import FinalAnswerTool
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentError

import unitask
from unitask.adapters.smolagents import UnitaskExecutor, _tamed
from unitask.mock import MockServer


class Script(Model):
    """A model whose answers are known."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers = list(answers)
        self.seen: list[str] = []

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        self.seen.append(str(messages[-1].content))
        return ChatMessage(role=MessageRole.ASSISTANT, content=self.answers.pop(0))


class Search(Tool):
    name = "web_search"
    description = "Searches the web."
    inputs = {"query": {"type": "string", "description": "What to look for."}}
    output_type = "string"

    def forward(self, query: str) -> str:
        return {"leopard": "58 km/h", "bridge": "155 m"}[query]


@tool
def double(n: int) -> int:
    """Doubles a number.

    Args:
        n: The number.
    """
    return 2 * n


@pytest.fixture
def executor(client: unitask.Client) -> Iterator[UnitaskExecutor]:
    one = UnitaskExecutor(client=client)
    yield one
    one.cleanup()


def test_readme(example: str) -> None:
    exec(compile(example, "README.md", "exec"), {})


def test_agent(executor: UnitaskExecutor) -> None:
    """The example of smolagents' README: how long does a leopard need for a bridge?"""
    model = Script(
        "Thought: look it up.\n<code>\n"
        "speed = web_search('leopard')\nlength = web_search('bridge')\nprint(speed)\n</code>",
        "Thought: a mistake.\n<code>\nseconds = int(length) / 2\n</code>",
        "Thought: the variables are there.\n<code>\n"
        "seconds = int(length.split()[0]) / (int(speed.split()[0]) / 3.6)\nfinal_answer(round(seconds, 2))\n</code>",
    )
    agent = CodeAgent(tools=[Search()], model=model, executor=executor, verbosity_level=0)
    assert agent.run("How many seconds does a leopard need for the Pont des Arts?") == 9.62
    assert "58 km/h" in model.seen[1] and "ValueError" in model.seen[2]


def test_tools_and_variables(executor: UnitaskExecutor) -> None:
    executor.send_tools({"double": double, "final_answer": FinalAnswerTool()})
    executor.send_variables({"start": 20, "when": {"a", "b"}})
    out = executor("print('inside'); x = double(start) + len(when); x")
    assert out.output == "42" and out.logs == "inside\n" and not out.is_final_answer
    assert executor("x += 1; x").output == "43"
    out = executor("print('last'); final_answer({'x': x, 'pair': (1, None)})")
    assert out.is_final_answer and out.output == {"x": 43, "pair": (1, None)} and out.logs == "last\n"
    assert executor("x").output == "43"


def test_errors(executor: UnitaskExecutor) -> None:
    with pytest.raises(AgentError, match="before\n(.*\n)*.*ZeroDivisionError: division by zero"):
        executor("print('before'); 1/0")
    executor.send_tools({"double": double})
    executor.timeout = 1
    with pytest.raises(AgentError, match="took too long"):
        executor("import time; time.sleep(60)")
    assert executor("double(4)").output == "8"
    with pytest.raises(ValueError, match="runs already"):
        executor.install_packages(["six"])
    with pytest.raises(AgentError, match="ServerError|took|Exit|exit"):
        executor("import os; os._exit(3)")


def test_large_answer(executor: UnitaskExecutor) -> None:
    executor.send_tools({"final_answer": FinalAnswerTool()})
    out = executor("import sys; print('e' * 100_000, file=sys.stderr); final_answer('ü' * 1_000_000)")
    assert out.is_final_answer and out.output == "ü" * 1_000_000
    assert executor("print('y' * 2_000_000)").logs.startswith("yyy")


def test_machine_ends(client: unitask.Client, ends: Callable[[str], None]) -> None:
    executor = UnitaskExecutor(client=client)
    executor("1")
    first = executor.session.id
    executor.cleanup()
    ends(first)
    executor("2")
    second = executor.session.id
    assert second != first
    del executor
    ends(second)


def said(stderr: str, **more: Any) -> UnitaskExecutor:
    """Returns an executor whose code writes this to stderr."""
    server = MockServer(lambda request: {"stderr": stderr, "exitCode": 1, **more})
    return UnitaskExecutor(client=unitask.Client(transport=server.transport))


ANSWER = "FinalAnswerException: safe:1"


def test_printed_answer() -> None:
    """Only an exception is a final answer: not what code prints that succeeds, or that takes too long."""
    executor = said(ANSWER, exitCode=0)
    assert not executor("1").is_final_answer
    executor.cleanup()
    executor = said(ANSWER, outcome="timeout", exitCode=124)
    with pytest.raises(AgentError, match="took too long"):
        executor("1")
    executor.cleanup()


@pytest.mark.parametrize("text", [ANSWER + " " * 300_000 + "\nx", ANSWER * 20_000 + "\nx"])
def test_answer_is_found_fast(text: str) -> None:
    executor = said(text)
    began = time.monotonic()
    with pytest.raises(AgentError):
        executor("1")
    assert time.monotonic() - began < 5
    executor.cleanup()


def test_hostile_answer() -> None:
    """A small text becomes no huge array, and no file that Pillow needs a program for."""
    array = {"__type__": "ndarray", "data": ["a", "b"], "dtype": "S500000000"}
    answer = _tamed("safe:" + json.dumps([array, {**array, "dtype": "int64"}]))
    assert [one["dtype"] for one in json.loads(answer.removeprefix("safe:"))] == ["object", "int64"]
    picture = base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n").decode()
    executor = said("FinalAnswerException: safe:" + json.dumps({"__type__": "PIL.Image", "data": picture}))
    with pytest.raises(ValueError, match="not PNG"):
        executor("1")
    executor.cleanup()
