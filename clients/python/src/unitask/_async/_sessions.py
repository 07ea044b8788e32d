"""Sessions: machines that stay for many steps and commands."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

import httpx
from pydantic import BaseModel

from .. import _models
from .._background import begin, end
from .._errors import NotFoundError, ServerError, UnitaskError
from .._functions import FunctionTools
from .._results import Result
from .._wire import CodeFiles, Event, body, files_of, many, path_of, port_path
from ._files import AsyncFiles, AsyncValues
from ._http import AsyncHTTP
from ._runs import AsyncRun, AsyncRunResult, answer, follow, wait_for


class SessionResult(_models.SessionResult, Result):
    """How a step or a command ended. ``value`` is the value of a step's last expression, as text."""


class Started(BaseModel):
    """A step or a command in the background."""

    runId: str
    pid: int = 0


class SessionList(BaseModel):
    """Sessions of a caller."""

    sessions: list[_models.Session]


class QuestionList(BaseModel):
    """Questions of a caller."""

    questions: list[_models.Question]


class CommandList(BaseModel):
    """Commands in the background."""

    commands: list[_models.RunningCommand]


class AsyncTask:
    """A step or a command in the background. It ends with its session."""

    def __init__(self, http: AsyncHTTP, session: str, id: str, pid: int = 0) -> None:
        self._http, self.session, self.id, self.pid = http, session, id, pid
        self._at = path_of("sessions", session, "commands", id)

    def __repr__(self) -> str:
        return f"<unitask task {self.id} of session {self.session}>"

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yields the events stdout, stderr and end. Begins after the event number ``after``."""
        return self._http.events(path_of("sessions", self.session, "runs", self.id, "events"), after=after)

    async def result(self) -> AsyncRunResult:
        """Waits for the task's end and returns its result."""
        return await wait_for(self._http, self.id)

    async def cancel(self) -> None:
        """Ends the task."""
        await self._http.send("DELETE", path_of("sessions", self.session, "runs", self.id))

    async def write(self, text: str | bytes) -> None:
        """Writes to the standard input of a command that was started with ``interactive=True``."""
        if isinstance(text, bytes):
            await self._http.send("POST", self._at + "/stdin", json={"base64": base64.b64encode(text).decode()})
        else:
            await self._http.send("POST", self._at + "/stdin", json={"text": text})

    async def close_stdin(self) -> None:
        """Ends the command's standard input."""
        await self._http.send("POST", self._at + "/stdin", json={"close": True})

    async def signal(self, name: str) -> None:
        """Sends a signal, such as "SIGTERM", to the command's process group."""
        await self._http.send("POST", self._at + "/signal", json={"signal": name})

    async def resize(self, columns: int, rows: int) -> None:
        """Changes the size of the command's terminal, in characters."""
        await self._http.send("POST", self._at + "/resize", json={"columns": columns, "rows": rows})


class AsyncSession:
    """A machine that stays: variables, files and processes remain from step to step.

    As a context manager, it ends the session at the block's end.
    """

    def __init__(self, http: AsyncHTTP, state: _models.Session, tools: FunctionTools | None = None) -> None:
        self._http, self.id, self.state = http, state.id, state
        self._answering = begin(follow, http, AsyncRun(http, state.id), None, None, tools) if tools else None
        self._at = path_of("sessions", state.id)
        self.files = AsyncFiles(http, state.id)
        self.values = AsyncValues(http, state.id)

    def __repr__(self) -> str:
        return f"<unitask session {self.id}>"

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except UnitaskError:
            if err is None:  # otherwise raise the first error
                raise

    async def run(
        self,
        code: str,
        *,
        language: str | None = None,
        timeout: float | None = None,
        files: CodeFiles | None = None,
        dirs: Sequence[str] | None = None,
        key: str | None = None,
    ) -> SessionResult:
        """Runs code in an interpreter of the session, and returns the step's result.

        ``language`` is the session's if not given. ``timeout`` is in seconds, 60 if not given, or the session's if that
        is less. ``files`` is {name: content}. With ``key`` (Idempotency-Key) the same call never runs the code twice.
        """
        told = body(code=code, language=language, timeout_seconds=timeout, files=files_of(files), dirs=many(dirs))
        return await self._http.post(SessionResult, self._at + "/steps", told, key=key)

    async def start_run(
        self, code: str, *, language: str | None = None, timeout: float | None = None, files: CodeFiles | None = None
    ) -> AsyncTask:
        """Begins to run code, and returns the task. The arguments are those of run."""
        told = body(code=code, language=language, timeout_seconds=timeout, files=files_of(files))
        is_ = await self._http.post(Started, self._at + "/steps", told, params={"wait": False})
        return AsyncTask(self._http, self.id, is_.runId)

    async def exec(
        self,
        *args: str,
        stdin: str | None = None,
        dir: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        key: str | None = None,
    ) -> SessionResult:
        """Runs a program beside the interpreters, such as exec("ls", "-l"), and returns its result.

        A missing program has exit code 127. ``timeout`` is in seconds, 60 if not given, or the session's if that is
        less. ``user`` is "user" (the default) or "root", which needs a session with ``root=True``.
        """
        told = body(
            args=list(args), stdin=stdin, dir=dir, env=dict(env) if env else None, user=user, timeout_seconds=timeout
        )
        return await self._http.post(SessionResult, self._at + "/commands", told, key=key)

    async def start(
        self,
        *args: str,
        stdin: str | None = None,
        interactive: bool = False,
        dir: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> AsyncTask:
        """Starts a program in the background, and returns the task. The arguments are those of exec.

        ``interactive`` keeps standard input open, for Task.write. ``terminal`` gives the program a terminal of this
        size (columns, rows). Without ``timeout`` there is no time limit.
        """
        size = {"columns": terminal[0], "rows": terminal[1]} if terminal else None
        told = body(
            args=list(args),
            stdin=stdin,
            interactive=interactive or None,
            dir=dir,
            env=dict(env) if env else None,
            user=user,
            timeout_seconds=timeout,
            terminal=size,
        )
        is_ = await self._http.post(Started, self._at + "/commands", told, params={"wait": False})
        return AsyncTask(self._http, self.id, is_.runId, is_.pid)

    async def commands(self) -> list[_models.RunningCommand]:
        """Returns the commands in the background."""
        return (await self._http.get(CommandList, self._at + "/commands")).commands

    async def questions(self) -> list[_models.Question]:
        """Returns the open questions of the session's code."""
        found = await self._http.get(QuestionList, "/v1/approvals")
        return [one for one in found.questions if one.run == self.id]

    async def answer(self, question: _models.Question, verdict: str) -> None:
        """Answers a question: "deny", "once" or "allow"."""
        await answer(self._http, question, verdict)

    async def info(self) -> _models.Session:
        """Returns the session's state. A paused session stays paused."""
        self.state = await self._http.get(_models.Session, self._at)
        return self.state

    async def pause(self) -> None:
        """Writes the machine to the disk, and frees its memory. The next use resumes the session."""
        await self._http.send("POST", self._at + "/pause")

    async def resume(self) -> None:
        """Resumes a paused session."""
        await self._http.send("POST", self._at + "/resume")

    async def fork(self, count: int = 1) -> list[AsyncSession]:
        """Returns copies of the session (1 to 16), each in a machine of its own. End each of them."""
        made = await self._http.post(SessionList, self._at + "/fork", {"count": count})
        return [AsyncSession(self._http, state) for state in made.sessions]

    async def extend(self, life: float) -> _models.Session:
        """Lets the session live for ``life`` seconds from now on, and returns its state."""
        self.state = await self._http.post(_models.Session, self._at + "/extend", {"lifeSeconds": life})
        return self.state

    def url(self, port: int, path: str = "/") -> str:
        """Returns the URL of an HTTP server in the machine. If the client has a token, requests to the URL need it.

        ValueError: the path has . or .. in it, and would lead to something else.
        """
        return self._http.url + self._at + port_path(port, path)

    async def request(self, method: str, port: int, path: str = "/", **options: Any) -> httpx.Response:
        """Sends a request to an HTTP server in the machine, and returns the answer, which is in memory completely.

        The options are httpx's. Without ``timeout`` there is no time limit. ServerError: the connection broke, or the
        answer took longer than the timeout.
        """
        at = await self._http.address() + self._at + port_path(port, path)
        try:
            return await self._http.client.request(method, at, **options)
        except httpx.TransportError as err:
            raise ServerError(f"the server at {at} did not answer: {err or type(err).__name__}") from err

    def terminal(
        self, command: str | None = None, *, columns: int = 80, rows: int = 24, user: str | None = None
    ) -> Any:
        """Opens a terminal over WebSocket, with a shell or a command line. Returns the result of websockets' connect.

        Messages of bytes are the terminal's input and output. Messages of text are JSON: you may send
        {"resize": [columns, rows]}, and the last message is {"exitCode": 0}.
        """
        from websockets.asyncio.client import connect

        asked = urlencode(body(columns=columns, rows=rows, command=command, user=user))
        at = "ws" + self._http.url.removeprefix("http") + self._at + "/terminal?" + asked
        return connect(at, additional_headers=self._http.headers, max_size=None, proxy=None)

    async def aclose(self) -> None:
        """Ends the session. It is no error if the session has ended before."""
        try:
            await self._http.send("DELETE", self._at)
        except NotFoundError:
            pass
        if self._answering:
            await end(self._answering)
