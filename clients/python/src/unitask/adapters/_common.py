"""What the adapters share. It needs no framework."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .._async._runs import AsyncRun
from .._async._sessions import AsyncSession, AsyncTask
from .._errors import ApiError, UnitaskError
from .._sync._client import Client
from .._sync._sessions import Session

MAX_FILE = 100 << 20
"""Size in bytes of the largest file that an adapter reads into memory."""

MAX_INPUT = 512 << 10
"""Bytes of a command's input in one request."""

MAX_OUTPUT = 16 << 20
"""Bytes of a stream of a command's output that an adapter reads into memory. A server keeps no more."""


def missing(extra: str, err: ImportError) -> ImportError:
    """Returns the error of an adapter whose framework is not there."""
    return ImportError(f"{err}: install what the adapter needs with pip install 'unitask[{extra}]'", name=err.name)


def end_with(owner: object, session: Session | AsyncSession) -> Callable[[], None]:
    """Ends a session when its owner is collected, and when this process exits. Returns a function that forgets it.

    Garbage is collected in any thread, also in one that holds a lock of the client. So a thread of its own ends the
    session, with a client of its own, which starts no server.
    """
    http, id = session._http, session.id
    url, token = http.url, http.headers.get("Authorization", "").removeprefix("Bearer ")

    process = os.getpid()

    def end() -> None:
        forget()
        if os.getpid() != process:
            return  # a forked process does not own the session
        try:
            with Client(url, token or None, retries=0, verify=http._verify) as client:
                client._http.send("DELETE", f"/v1/sessions/{id}")
        except UnitaskError:
            pass  # it has ended, or its server has

    collected = weakref.finalize(owner, threading.Thread(target=end, daemon=True).start)
    collected.atexit = False
    atexit.register(end)

    def forget() -> None:
        collected.detach()
        atexit.unregister(end)

    return forget


@dataclass(frozen=True)
class Ended:
    """How a command ended. The streams have 16 MiB at most, and ``truncated`` says that there was more."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    timed_out: bool
    truncated: bool
    error: str


async def execute(
    session: AsyncSession,
    args: Sequence[str],
    *,
    stdin: bytes | None = None,
    dir: str | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    timeout: float | None = None,
) -> Ended:
    """Runs a command to its end. It may take longer than a step of the session. Cancelling the task ends it."""
    try:
        task = await session.start(*args, interactive=stdin is not None, dir=dir, env=env, user=user, timeout=timeout)
    except ApiError as err:
        if err.code != "cancelled":
            raise
        failed = await session.exec(*args, dir=dir, env=env, user=user, timeout=timeout)
        # It did not begin: exit code 126 or 127. But a program may be there by now.
        late, out, err_out = failed.outcome == "timeout", failed.stdout_bytes, failed.stderr_bytes
        return Ended(out, err_out, failed.exit_code, late, failed.truncated, failed.error or "")
    try:
        if stdin is not None:
            await _feed(task, stdin)
        result = await task.result()
        run, cut = AsyncRun(session._http, task.id), result.cut or []
        stdout = await run.stdout(MAX_OUTPUT) if "stdout" in cut else result.stdout_bytes
        stderr = await run.stderr(MAX_OUTPUT) if "stderr" in cut else result.stderr_bytes
    except BaseException:
        with contextlib.suppress(UnitaskError):
            await asyncio.shield(task.cancel())
        raise
    timed_out = result.outcome == "timeout"
    return Ended(stdout, stderr, result.exit_code, timed_out, result.truncated, result.error or "")


async def _feed(task: AsyncTask, stdin: bytes) -> None:
    try:
        for at in range(0, len(stdin), MAX_INPUT):
            await task.write(stdin[at : at + MAX_INPUT])
        await task.close_stdin()
    except ApiError as err:
        if err.code != "ended":  # a command need not read its input
            raise


def file_error(err: UnitaskError, path: str) -> OSError | None:
    """Returns the error of Python for a server's error about a file, or None for another error."""
    if not isinstance(err, ApiError) or err.code != "file":
        return None
    kinds = {
        "no such file": FileNotFoundError,
        "not a directory": NotADirectoryError,
        "is a directory": IsADirectoryError,
        "file name too long": OSError,
        "ermission": PermissionError,
    }
    kind = next((kind for said, kind in kinds.items() if said in err.detail), OSError)
    return kind(f"{path}: {err.detail}")
