"""Runs: code in a machine of its own."""

from __future__ import annotations

import asyncio
import inspect
import pathlib
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from .. import _models
from .._errors import ApiError, UnitaskError
from .._functions import FunctionTools, error_of, result_of
from .._results import Result
from .._wire import Event, path_of
from ._http import AsyncHTTP

MAX_WAIT = 50
"""Seconds that the server lets a client wait for a result."""


class AsyncArtifact(_models.Artifact):
    """A file that a run left in /out."""

    _at: tuple[AsyncHTTP, str] | None = None

    async def read(self) -> bytes:
        """Returns the file's bytes."""
        assert self._at
        http, run = self._at
        return (await http.send("GET", path_of("runs", run, "artifacts") + "/" + _quoted(self.path))).content

    async def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Writes the file to a path of this computer, and returns the path.

        Choose the path yourself: the artifact's own name is the code's choice.
        """
        path = pathlib.Path(path)
        path.write_bytes(await self.read())
        return path


class AsyncRunResult(_models.RunResult, Result):
    """How a run ended. Code that fails has a result, too: see ``ok`` and ``check``."""

    artifacts: list[AsyncArtifact] = []  # type: ignore[assignment]

    def _of(self, http: AsyncHTTP) -> AsyncRunResult:
        for artifact in self.artifacts:
            artifact._at = (http, self.run_id)
        return self

    def artifact(self, path: str) -> AsyncArtifact:
        """Returns the artifact with this path below /out. KeyError: there is no such artifact."""
        for one in self.artifacts:
            if one.path == path:
                return one
        raise KeyError(path)


class AsyncRun:
    """A run, which may have ended. As a context manager, it cancels the run at the block's end."""

    def __init__(self, http: AsyncHTTP, id: str) -> None:
        self._http, self.id = http, id

    def __repr__(self) -> str:
        return f"<unitask run {self.id}>"

    async def __aenter__(self) -> AsyncRun:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.cancel()
        except UnitaskError:
            if err is None:  # otherwise raise the first error
                raise

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yields the run's events, its output included, until it has ended. Begins after the event number ``after``."""
        return self._http.events(path_of("runs", self.id, "events"), after=after)

    async def result(self) -> AsyncRunResult:
        """Waits for the run's end and returns its result."""
        return await wait_for(self._http, self.id)

    async def cancel(self) -> None:
        """Ends the run. A run that has ended stays as it is."""
        await self._http.send("POST", path_of("runs", self.id, "cancel"))

    async def record(self) -> _models.Run:
        """Returns the run's request, its grants, and how it ended."""
        return await self._http.get(_models.Run, path_of("runs", self.id))

    async def stdout(self, limit: int | None = None) -> bytes:
        """Returns the run's standard output so far. TooLargeError: it has more than ``limit`` bytes."""
        return await self._http.fetch(path_of("runs", self.id, "stdout"), limit=limit)

    async def stderr(self, limit: int | None = None) -> bytes:
        """Returns the run's standard error so far. TooLargeError: it has more than ``limit`` bytes."""
        return await self._http.fetch(path_of("runs", self.id, "stderr"), limit=limit)

    async def netlog(self) -> str:
        """Returns the log of the run's network requests: a JSON object in each line."""
        return (await self._http.send("GET", path_of("runs", self.id, "netlog"))).text

    async def artifacts(self) -> list[AsyncArtifact]:
        """Returns the files that the code left in /out."""
        found = await self._http.get(_models.ArtifactList, path_of("runs", self.id, "artifacts"))
        all = [AsyncArtifact.model_validate(one.model_dump(by_alias=True)) for one in found.artifacts]
        for artifact in all:
            artifact._at = (self._http, self.id)
        return all

    async def answer(self, question: _models.Question, verdict: str) -> None:
        """Answers a question: "deny", "once" (this connection or request) or "allow" (the host, in this run)."""
        await answer(self._http, question, verdict)


async def wait_for(http: AsyncHTTP, id: str) -> AsyncRunResult:
    """Waits for the end of a run, step or command and returns its result."""
    while True:
        began = time.monotonic()
        try:
            return (await http.get(AsyncRunResult, path_of("runs", id, "result"), {"waitSeconds": MAX_WAIT}))._of(http)
        except ApiError as err:
            if err.code != "run.running":
                raise
            # For a run of another process, the server answers without waiting.
            await asyncio.sleep(max(0, err.retry_after - (time.monotonic() - began)))


async def answer(http: AsyncHTTP, question: _models.Question, verdict: str) -> None:
    """Answers a question."""
    told = {"host": question.host, "verdict": verdict}
    if question.request:
        told["request"] = question.request
    await http.send("POST", path_of("runs", question.run, "approvals"), json=told)


async def follow(http: AsyncHTTP, run: AsyncRun, on_event: Any, on_question: Any, tools: FunctionTools | None) -> None:
    """Passes a run's events to functions, and answers its questions and its calls."""
    called: set[Any] = set()
    async for event in run.events():
        if on_event:
            told = on_event(event)
            if inspect.isawaitable(told):
                await told
        if event.kind == "question" and on_question:
            question = _models.Question.model_validate(event.data)
            verdict = on_question(question)
            if inspect.isawaitable(verdict):
                verdict = await verdict
            try:
                await answer(http, question, verdict or "deny")
            except ApiError as err:
                if err.code != "approval.none":  # somebody else answered, or it is too late
                    raise
        if tools and event.kind in ("toolCall", "lost"):  # among the lost events there may be calls
            for data in [event.data] if event.kind == "toolCall" else await waiting(http, run.id):
                if data.get("call") not in called:
                    called.add(data.get("call"))
                    await call(http, run.id, data, tools)


async def waiting(http: AsyncHTTP, id: str) -> list[dict[str, Any]]:
    """Returns the calls that wait for an answer."""
    calls: list[dict[str, Any]] = (await http.send("GET", path_of("runs", id, "calls"))).json()["calls"]
    return calls


async def call(http: AsyncHTTP, id: str, data: dict[str, Any], tools: FunctionTools) -> None:
    """Calls the function that a run's code called, and answers with its result."""
    try:
        value = tools.call(data["server"], data["tool"], data["arguments"])
        if inspect.isawaitable(value):
            value = await value
        told = result_of(value)
    except Exception as err:
        told = error_of(err)
    at = path_of("runs", id, "calls", str(data.get("call")))
    try:
        await tell(http, at, told)
    except ApiError as err:
        if err.status not in (400, 413, 422):
            raise
        await tell(http, at, error_of(err))  # the server does not take the result, as it is too large


async def tell(http: AsyncHTTP, at: str, told: dict[str, Any]) -> None:
    """Answers a call, which may be over."""
    try:
        await http.send("POST", at, json=told)
    except ApiError as err:
        if err.code != "call.none":
            raise


def _quoted(path: str) -> str:
    return "/".join(path_of(part).removeprefix("/v1/") for part in path.split("/"))
