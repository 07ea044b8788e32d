"""The asynchronous client, with real machines. Its code is that of the synchronous one."""

from __future__ import annotations

import asyncio

import unitask


async def test_run(async_client: unitask.AsyncClient) -> None:
    results = await asyncio.gather(*(async_client.run(f"print({number})") for number in range(3)))
    assert [one.stdout for one in results] == ["0\n", "1\n", "2\n"]


async def test_hooks(async_client: unitask.AsyncClient) -> None:
    seen: list[str] = []

    async def hook(event: unitask.Event) -> None:
        seen.append(event.text)

    async def deny(question: unitask.Question) -> str:
        return "deny"

    code = "import urllib.request\ntry: urllib.request.urlopen('http://example.com')\nexcept Exception: print('no')"
    result = await async_client.run(code, ask=["example.com"], on_event=hook, on_question=deny, timeout=50)
    assert result.stdout == "no\n" and "no\n" in seen


async def test_cancelled_task(async_client: unitask.AsyncClient) -> None:
    """A run ends with the task that waits for it."""
    task = asyncio.create_task(async_client.run("import time; time.sleep(61)", timeout=90))
    await asyncio.sleep(2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for _ in range(100):
        if "running" not in [one.status async for one in async_client.runs(status="running")]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the run goes on")


async def test_session(async_client: unitask.AsyncClient) -> None:
    async with await async_client.session() as session:
        await session.files.write("a.txt", b"text")
        assert (await session.run("open('a.txt').read()")).value == "'text'"
        task = await session.start("echo", "hello")
        assert "hello\n" in [event.text async for event in task.events()]
        async with session.terminal("exit 3") as terminal:
            assert '{"exitCode":3}' in [one async for one in terminal]


async def test_functions_of_a_session(async_client: unitask.AsyncClient) -> None:
    """The code of a session calls coroutine functions of this program."""

    async def twice(n: int) -> int:
        return 2 * n

    async with await async_client.session(functions={"shop": [twice]}) as session:
        result = await session.run("from unitask_tools import shop\nshop.twice(n=4)")
        assert result.value == "8", result.stderr
        answering = session._answering
    assert isinstance(answering, asyncio.Task) and answering.done() and not answering.cancelled()
