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
    """A client of ``unitask serve``. A client with no address starts a server on this computer."""

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

        Without ``url`` it is $UNITASK_URL. Without that the client starts a server with its first request, one for this
        process, with the program unitask of $PATH or $UNITASK_BIN. ``token`` or $UNITASK_TOKEN says who the caller is.
        ``retries`` is how often a request is sent again that a busy server did not begin. ``transport`` is for tests:
        see unitask.mock.
        """
        self._http = AsyncHTTP(url, token, retries, verify, transport)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._http.url

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the client's connections. Sessions stay."""
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

        The members are those of POST /v1/runs, in snake_case; ``more`` has further ones, as max_processes. ``timeout``
        is in seconds. ``files`` is {name: content}. ``on_event`` gets the output while it comes. ``on_question`` is
        asked about hosts in ``ask``: it returns "deny", "once" or "allow". The code calls your ``functions``, as
        {"shop": [total]}, one at a time. Each has a minute; type hints say which arguments fit. An exception becomes a
        ToolError in the code. With ``key`` (Idempotency-Key) the same call
        begins the work once only, even if the connection breaks, and the run goes on without its client. A run without
        a key ends with its client.
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
                    pass  # what went wrong first is the error
            raise

    async def start(self, code: str, language: str = "python", *, key: str | None = None, **options: Any) -> AsyncRun:
        """Begins a run and returns. The options are those of run.

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
        """Yields your runs, the newest first."""
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
        key: str | None = None,
        **more: Any,
    ) -> AsyncSession:
        """Starts a session. The members are those of POST /v1/sessions; times are in seconds.

        As a context manager it ends the session; without one, call its close.
        """
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
            **more,
        )
        return AsyncSession(self._http, await self._http.post(_models.Session, "/v1/sessions", told, key=key))

    async def get_session(self, id: str) -> AsyncSession:
        """Returns a session of yours by its id. NotFoundError: there is none."""
        return AsyncSession(self._http, await self._http.get(_models.Session, path_of("sessions", id)))

    async def sessions(self) -> list[_models.Session]:
        """Returns your sessions."""
        return (await self._http.get(SessionList, "/v1/sessions")).sessions

    async def questions(self) -> list[_models.Question]:
        """Returns the open questions of your runs and sessions."""
        return (await self._http.get(QuestionList, "/v1/approvals")).questions

    async def answer(self, question: _models.Question, verdict: str) -> None:
        """Answers a question: "deny", "once" (this connection or request) or "allow" (the host, in this run)."""
        await answer(self._http, question, verdict)

    def events(self) -> AsyncIterator[Event]:
        """Yields the begins and ends of your runs (run and start), without an end."""
        return self._http.events("/v1/events")

    async def about(self) -> _models.About:
        """Returns the server's version, languages and images."""
        return await self._http.get(_models.About, "/v1/about")

    async def images(self) -> list[_models.Image]:
        """Returns the images."""
        return (await self._http.get(ImageList, "/v1/images")).images

    async def doctor(self) -> _models.Report:
        """Returns whether code can run on the server, and what it lacks."""
        return await self._http.get(_models.Report, "/v1/doctor")
