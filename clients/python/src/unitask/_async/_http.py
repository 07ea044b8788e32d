"""HTTP of the client."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from .._errors import ApiError, ServerError, TooLargeError, error_of
from .._server import local_address, started, token_of, url_of
from .._wire import Event, EventReader, in_thread

M = TypeVar("M", bound=BaseModel)

LONGEST_WAIT = 30.0
"""The client repeats a request to a busy server only if the server asks for at most this wait, in seconds."""


class AsyncHTTP:
    """Sends requests to a server."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        retries: int,
        verify: ssl.SSLContext | bool,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self._url = (url.rstrip("/") if url else "http://unitask.mock") if transport else url_of(url)
        self.retries = retries
        token = token_of(token)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._verify, self._transport = verify, transport
        self._client, self._owner = self._connections(), os.getpid()

    def _connections(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers=self.headers,
            timeout=httpx.Timeout(None, connect=10),
            limits=httpx.Limits(max_connections=None),
            verify=self._verify,
            transport=self._transport,
            trust_env=False,  # no proxy stands between this program and its server
        )

    @property
    def client(self) -> httpx.AsyncClient:
        """The connections. A forked process makes new ones."""
        if self._owner != os.getpid():
            self._client, self._owner = self._connections(), os.getpid()
        return self._client

    @property
    def url(self) -> str:
        """The server's address. Starts the server if needed."""
        return self._url or local_address()

    async def address(self) -> str:
        """Returns the server's address. Starts the server if needed."""
        if known := self._url or started():
            return known
        return await in_thread(local_address)

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: Any = None,
        params: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> httpx.Response:
        """Sends a request and returns the answer. ApiError: the server refuses it. ServerError: there is no answer.

        Repeats a request that a busy server did not begin, and a request with a key whose connection broke.
        """
        headers = {"Idempotency-Key": key} if key else {}
        left = self.retries
        while True:
            url = await self.address()
            try:
                answer = await self.client.request(
                    method, url + path, json=json, content=content, params=_set(params), headers=headers
                )
            except httpx.TransportError as err:
                if key and left > 0:
                    left -= 1
                    await asyncio.sleep(0.2)
                    continue
                raise ServerError(f"the server at {url} did not answer: {err or type(err).__name__}") from err
            if answer.is_success:
                return answer
            problem = error_of(answer.status_code, _problem(answer))
            if left <= 0 or content is not None or not _busy(problem):
                raise problem
            left -= 1
            await asyncio.sleep(problem.retry_after or 1)

    async def get(self, model: type[M], path: str, params: Mapping[str, Any] | None = None) -> M:
        """Gets a path, and returns the answer as a model."""
        return self.read(model, await self.send("GET", path, params=params))

    async def post(self, model: type[M], path: str, json: Any = None, **more: Any) -> M:
        """Sends JSON, and returns the answer as a model."""
        return self.read(model, await self.send("POST", path, json=json, **more))

    def read(self, model: type[M], answer: httpx.Response) -> M:
        """Returns an answer as a model. ServerError: the answer is not from a server of unitask."""
        try:
            return model.model_validate_json(answer.content)
        except ValidationError as err:
            why = err.errors(include_url=False, include_input=False)[0]
            at = ".".join(map(str, why["loc"]))
            raise ServerError(
                f"what {answer.request.url} answers is not of a server of unitask: {at and at + ': '}{why['msg']}"
            ) from err

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Opens an answer, to read it in parts."""
        url = await self.address()
        try:
            async with self.client.stream("GET", url + path, params=_set(params), headers=headers) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise error_of(answer.status_code, _problem(answer))
                yield answer
        except httpx.TransportError as err:
            raise ServerError(f"the connection to {url} broke: {err or type(err).__name__}") from err

    async def fetch(self, path: str, params: Mapping[str, Any] | None = None, limit: int | None = None) -> bytes:
        """Returns an answer's bytes. TooLargeError: they are more than ``limit``."""
        if limit is None:
            return (await self.send("GET", path, params=params)).content
        left = self.retries
        while True:
            data = bytearray()
            try:
                async with self.stream(path, params) as answer:
                    async for part in answer.aiter_bytes():
                        data += part
                        if len(data) > limit:
                            raise TooLargeError(f"there are more than {limit} bytes")
                return bytes(data)
            except ApiError as problem:
                if left <= 0 or not _busy(problem):
                    raise
                left -= 1
                await asyncio.sleep(problem.retry_after or 1)

    async def events(self, path: str, params: Mapping[str, Any] | None = None, after: int = 0) -> AsyncIterator[Event]:
        """Yields the server-sent events after a number, until the server ends the stream. Connects again if needed."""
        left = self.retries
        while True:
            headers = {"Last-Event-ID": str(after)} if after else {}
            try:
                async with self.stream(path, params, headers) as answer:
                    if answer.status_code == 204:
                        return
                    reader = EventReader()
                    async for text in answer.aiter_text():
                        for event in reader.feed(text):
                            after, left = event.number or after, self.retries
                            yield event
                    return
            except ServerError:
                if left <= 0 or after == 0:
                    raise
                left -= 1
                await asyncio.sleep(0.2)

    async def aclose(self) -> None:
        """Closes the connections."""
        if self._owner == os.getpid():
            await self._client.aclose()


def _busy(problem: ApiError) -> bool:
    """Returns whether a server is too busy to begin a request, and asks for a short wait."""
    return problem.retryable and problem.status in (429, 503) and problem.retry_after <= LONGEST_WAIT


def _set(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the parameters that are set, as the API spells them."""
    if params is None:
        return None
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in params.items()
        if value is not None
    }


def _problem(answer: httpx.Response) -> dict[str, Any]:
    try:
        problem = answer.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
