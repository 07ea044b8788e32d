"""AutoGen: an agent that writes code with a model that follows a script, and the executor's own behaviour."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor
from autogen_core.tools import BaseTool
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.code_execution import PythonCodeExecutionTool

import unitask
from unitask.adapters.autogen import UnitaskCodeExecutor


@pytest.fixture
async def executor() -> AsyncIterator[UnitaskCodeExecutor]:
    async with UnitaskCodeExecutor() as one:
        yield one


async def run(executor: CodeExecutor, *blocks: tuple[str, str]) -> tuple[int, str]:
    code = [CodeBlock(language=language, code=code) for language, code in blocks]
    done = await executor.execute_code_blocks(code, CancellationToken())
    return done.exit_code, done.output


async def test_readme(example: str) -> None:
    names: dict[str, Any] = {}
    exec(compile(example.replace("asyncio.run(main())", ""), "README.md", "exec"), names)
    await names["main"]()


async def test_agent(executor: UnitaskCodeExecutor) -> None:
    """AutoGen's example of CodeExecutorAgent: the model writes code, and reads its output."""
    model = ReplayChatCompletionClient(
        [
            "Let us see:\n```python\nprint(sum(range(101)))\n```",
            "It is 5050.",
        ]
    )
    agent = CodeExecutorAgent("coder", code_executor=executor, model_client=model)
    done = await agent.run(task="What is the sum of 1 to 100?")
    said = [one.to_text() for one in done.messages]
    assert said[-1] == "It is 5050.", said
    assert "5050\\n" in str(model.create_calls[-1]), model.create_calls[-1]


async def test_agent_without_model(executor: UnitaskCodeExecutor) -> None:
    agent = CodeExecutorAgent("runner", code_executor=executor)
    text = "```python\nx = 41\n```\nand then\n```sh\necho from $0\n```\n```python\nprint(x + 1)\n```"
    done = await agent.run(task=TextMessage(content=text, source="user"))
    assert done.messages[-1].to_text() == "from sh\n42\n"


async def test_tool(executor: UnitaskCodeExecutor) -> None:
    tool: BaseTool[Any, Any] = PythonCodeExecutionTool(executor)
    done = await tool.run_json({"code": "print(6 * 7)"}, CancellationToken())
    assert done.success and done.output == "42\n"


async def test_blocks(executor: UnitaskCodeExecutor) -> None:
    assert await run(executor, ("python", "x = 6\nx * 7")) == (0, "42\n")
    code, output = await run(executor, ("python", "1/0"), ("python", "print('not reached')"))
    assert code == 1 and "ZeroDivisionError" in output and "not reached" not in output
    assert await run(executor, ("bash", "echo $BASH; exit 5"))
    executor.timeout = 1
    code, output = await run(executor, ("python", "print('a', flush=True)\nimport time; time.sleep(60)"))
    assert code == 124 and output.startswith("a\n"), output
    assert await run(executor, ("python", "x")) == (0, "6\n")
    with pytest.raises(ValueError, match="not cobol"):
        await run(executor, ("cobol", ""))


async def test_cancelled(executor: UnitaskCodeExecutor) -> None:
    token = CancellationToken()
    work = executor.execute_code_blocks([CodeBlock(language="python", code="import time; time.sleep(60)")], token)
    asyncio.get_running_loop().call_later(2, token.cancel)
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await asyncio.wait_for(run(executor, ("python", "print('again')")), 20) == (0, "again\n")


async def test_restart_and_config(executor: UnitaskCodeExecutor) -> None:
    await run(executor, ("python", "x = 1"))
    await executor.restart()
    assert (await run(executor, ("python", "x")))[0] == 1
    again = CodeExecutor.load_component(UnitaskCodeExecutor(timeout=7, memory_mb=768).dump_component())
    assert isinstance(again, UnitaskCodeExecutor) and again.timeout == 7
    with pytest.raises(ValueError, match="start the executor"):
        await run(again, ("python", "1"))


async def test_machine_ends(ends: Callable[[str], None], client: unitask.Client) -> None:
    executor = UnitaskCodeExecutor()
    await executor.start()
    id = executor.session.id
    await executor.stop()
    ends(id)
    await executor.start()
    id = executor.session.id
    del executor
    ends(id)
