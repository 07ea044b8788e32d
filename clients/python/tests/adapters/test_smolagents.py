"""smolagents, with a model that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from smolagents import CodeAgent, Model, Tool, tool
from smolagents.default_tools import FinalAnswerTool
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentError

import unitask
from unitask.adapters.smolagents import UnitaskExecutor


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
