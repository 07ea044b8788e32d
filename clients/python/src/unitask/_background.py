"""Work beside the caller: a task of its event loop, or a thread."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

from ._errors import UnitaskError

LAST = 10.0
"""Seconds that the end of the work may take."""


def begin(does: Callable[..., Any], *args: Any) -> asyncio.Task[Any] | threading.Thread:
    """Begins a coroutine function as a task, or another function in a thread.

    A UnitaskError ends the work silently: without the server, each other call says what is wrong.
    """
    if inspect.iscoroutinefunction(does):
        return asyncio.create_task(_task(does, *args))
    thread = threading.Thread(target=_call, args=(does, *args), daemon=True)
    thread.start()
    return thread


async def _task(does: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(UnitaskError):
        await does(*args)


def _call(does: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(UnitaskError):
        does(*args)


async def _wait(task: asyncio.Task[Any]) -> None:
    done, _ = await asyncio.wait([task], timeout=LAST)
    if not done:
        task.cancel()


def end(work: asyncio.Task[Any] | threading.Thread) -> Any:
    """Waits for the end of the work. Of a task the result must be awaited, and a late one is cancelled."""
    if isinstance(work, threading.Thread):
        work.join(LAST)
        return None
    return _wait(work)
