"""The client."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx
from pydantic import BaseModel

from .. import _models
from .._errors import UnitaskError
from .._functions import Functions, FunctionTools
from .._wire import CodeFiles, Event, body, files_of, many, path_of
from ._http import AsyncHTTP
from ._runs import AsyncRun, AsyncRunResult, answer, follow
from ._sessions import AsyncSession, QuestionList, SessionList


class ImageList(BaseModel):
    """Images of a server."""

    images: list[_models.Image]


class AsyncClient:
    """A client of ``unitask serve``. Without an address, the client starts a server on this computer."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retries: int = 2,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Makes a client.

        ``url`` is the server's address, $UNITASK_URL if not given. Without an address, the first request starts one
        server for this process. Its program is $UNITASK_BIN, the one in this package's wheel, or unitask of $PATH.
        ``token`` says who the caller is, $UNITASK_TOKEN if not given. ``retries`` is how often the client repeats a
        request that a busy server did not begin. ``verify`` is httpx's: whether and how to check the server's
        certificate. ``transport`` is for tests: see unitask.mock.

        ValueError: the token has a character that a header can't have.
        """
        self._http = AsyncHTTP(url, token, retries, verify, transport)

    @property
    def url(self) -> str:
        """The server's address. Without one, this starts the server. ServerError: it did not start."""
        return self._http.url

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the client's connections. Sessions go on."""
        await self._http.aclose()

    async def run(
        self,
        code: str,
        language: str = "python",
        *,
        filename: str | None = None,
        image: str | None = None,
        packages: Sequence[str] | None = None,
        args: Sequence[str] | None = None,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        dir: str | None = None,
        files: CodeFiles | None = None,
        dirs: Sequence[str] | None = None,
        allow_net: Sequence[str] | None = None,
        allow_net_any: bool | None = None,
        allow_http: Sequence[str] | None = None,
        allow_tcp: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        ask: Sequence[str] | None = None,
        secrets: Sequence[str] | None = None,
        timeout: float | None = None,
        memory_mb: int | None = None,
        cpus: float | None = None,
        kernel: str | None = None,
        on_event: Callable[[Event], Any] | None = None,
        on_question: Callable[[_models.Question], Any] | None = None,
        functions: Functions | None = None,
        key: str | None = None,
        **more: Any,
    ) -> AsyncRunResult:
        """Runs code in a fresh machine and returns its result.

        The arguments are the members of POST /v1/runs in snake_case. ``more`` takes further members, such as
        max_processes. ``timeout`` is in seconds, 60 if not given. ``memory_mb`` is in MiB, 512 if not given. ``files``
        is {name: content}. ``on_event`` gets each event as it comes. ``on_question`` gets each question about a host in
        ``ask``, and returns "deny", "once" or "allow".

        The code calls your ``functions``, as {"shop": [total]}, one at a time. Each has a minute. Type hints say which
        arguments fit. An exception becomes a ToolError in the code.

        A run without ``key`` ends with its client. With ``key`` (Idempotency-Key) the run goes on without its client,
        and the same call never begins the work twice, even if the connection breaks.

        Code that fails has a result, too. ApiError: the server refuses the run. ServerError: the server doesn't answer.
        """
        told = body(
            code=code,
            language=language,
            filename=filename,
            image=image,
            packages=many(packages),
            args=many(args),
            stdin=stdin,
            env=dict(env) if env else None,
            dir=dir,
            files=files_of(files),
            dirs=many(dirs),
            allow_net=many(allow_net),
            allow_net_any=allow_net_any,
            allow_http=many(allow_http),
            allow_tcp=many(allow_tcp),
            tools=many(tools),
            ask=many(ask),
            secrets=many(secrets),
            timeout_seconds=timeout,
            memory_mb=memory_mb,
            cpus=cpus,
            kernel=kernel,
            **more,
        )
        tools_of = FunctionTools(functions) if functions else None
        if tools_of:
            told["clientTools"] = tools_of.described
        if not on_event and not on_question and not tools_of:
            result = await self._http.post(AsyncRunResult, "/v1/runs", told, key=key)
            return result._of(self._http)
        run = await self._begin(told, key)
        try:
            await follow(self._http, run, on_event, on_question, tools_of)
            return await run.result()
        except BaseException:
            if not key:
                try:
                    await run.cancel()
                except UnitaskError:
                    pass  # raise the first error instead
            raise

    async def start(self, code: str, language: str = "python", *, key: str | None = None, **options: Any) -> AsyncRun:
        """Begins a run and returns it. The options are those of run, without on_event and on_question.

        >>> with client.start("print(1)") as run:
        ...     for event in run.events():
        ...         print(event.kind, event.text)
        """
        for name in ("allow_net", "allow_http", "allow_tcp", "tools", "ask", "args", "packages", "secrets", "dirs"):
            options[name] = many(options.get(name))
        options["files"] = files_of(options.get("files"))
        told = body(code=code, language=language, timeout_seconds=options.pop("timeout", None), **options)
        return await self._begin(told, key)

    async def _begin(self, told: dict[str, Any], key: str | None) -> AsyncRun:
        state = await self._http.post(_models.RunState, "/v1/runs", told, params={"wait": False}, key=key)
        return AsyncRun(self._http, state.run_id)

    def get_run(self, id: str) -> AsyncRun:
        """Returns a run by its id, without asking the server."""
        return AsyncRun(self._http, id)

    async def runs(self, *, status: str | None = None) -> AsyncIterator[_models.RunSummary]:
        """Yields your runs, the newest first. ``status`` selects those with this outcome or status."""
        before = None
        while True:
            page = await self._http.get(_models.RunList, "/v1/runs", {"status": status, "before": before})
            for one in page.runs:
                yield one
            before = page.next
            if not before:
                return

    async def session(
        self,
        language: str = "python",
        *,
        image: str | None = None,
        packages: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        files: CodeFiles | None = None,
        dirs: Sequence[str] | None = None,
        allow_net: Sequence[str] | None = None,
        allow_net_any: bool | None = None,
        allow_http: Sequence[str] | None = None,
        allow_tcp: Sequence[str] | None = None,
        tools: Sequence[str] | None = None,
        ask: Sequence[str] | None = None,
        secrets: Sequence[str] | None = None,
        timeout: float | None = None,
        life: float | None = None,
        idle: float | None = None,
        memory_mb: int | None = None,
        cpus: float | None = None,
        root: bool | None = None,
        functions: Functions | None = None,
        key: str | None = None,
        **more: Any,
    ) -> AsyncSession:
        """Starts a session. End it with its close (aclose of AsyncSession), or use it as a context manager.

        The arguments are the members of POST /v1/sessions in snake_case. ``more`` takes further members. Times are in
        seconds. ``timeout`` is the longest time limit of a step. ``life`` is how long the session lives, a day if not
        given. ``idle`` is the time without work after which the session is paused, 600 if not given. ``memory_mb`` is
        in MiB, 512 if not given. With ``key`` (Idempotency-Key) the same call never starts a second session.

        The code calls your ``functions`` as that of run does, until the session ends. Client calls them in a thread.
        A session of get_session has none, and calls in forks are not answered.
        """
        tools_of = FunctionTools(functions) if functions else None
        told = body(
            language=language,
            image=image,
            packages=many(packages),
            env=dict(env) if env else None,
            files=files_of(files),
            dirs=many(dirs),
            allow_net=many(allow_net),
            allow_net_any=allow_net_any,
            allow_http=many(allow_http),
            allow_tcp=many(allow_tcp),
            tools=many(tools),
            ask=many(ask),
            secrets=many(secrets),
            timeout_seconds=timeout,
            life_seconds=life,
            idle_seconds=idle,
            memory_mb=memory_mb,
            cpus=cpus,
            root=root,
            client_tools=tools_of.described if tools_of else None,
            **more,
        )
        return AsyncSession(self._http, await self._http.post(_models.Session, "/v1/sessions", told, key=key), tools_of)

    async def get_session(self, id: str) -> AsyncSession:
        """Returns a session of yours by its id. NotFoundError: you have no such session."""
        return AsyncSession(self._http, await self._http.get(_models.Session, path_of("sessions", id)))

    async def sessions(self) -> list[_models.Session]:
        """Returns your sessions."""
        return (await self._http.get(SessionList, "/v1/sessions")).sessions

    async def questions(self) -> list[_models.Question]:
        """Returns the open questions of your runs and sessions."""
        return (await self._http.get(QuestionList, "/v1/approvals")).questions

    async def answer(self, question: _models.Question, verdict: str) -> None:
        """Answers a question: "deny", "once" (this connection or request) or "allow" (the host, in this run).

        ApiError with the code approval.none: somebody else has answered, or it is too late.
        """
        await answer(self._http, question, verdict)

    def events(self) -> AsyncIterator[Event]:
        """Yields the events begun and ended of your runs from now on. The stream does not end by itself."""
        return self._http.events("/v1/events")

    async def about(self) -> _models.About:
        """Returns the server's version, languages and images."""
        return await self._http.get(_models.About, "/v1/about")

    async def images(self) -> list[_models.Image]:
        """Returns the images."""
        return (await self._http.get(ImageList, "/v1/images")).images

    async def doctor(self) -> _models.Report:
        """Returns whether code can run on the server, and what the server lacks."""
        return await self._http.get(_models.Report, "/v1/doctor")
