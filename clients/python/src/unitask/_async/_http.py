"""HTTP of the client."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from .._errors import ServerError, error_of
from .._server import address_of
from .._wire import Event, EventReader

M = TypeVar("M", bound=BaseModel)

LONGEST_WAIT = 30.0
"""Seconds that a busy server may ask for before a request is sent again."""


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
        self.url = "http://unitask.mock" if transport and not url else address_of(url)
        self.retries = retries
        self.token = token or os.environ.get("UNITASK_TOKEN")
        self.headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self.client = httpx.AsyncClient(
            base_url=self.url,
            headers=self.headers,
            timeout=httpx.Timeout(None, connect=10),
            limits=httpx.Limits(max_connections=None),
            verify=verify,
            transport=transport,
            trust_env=False,  # no proxy stands between this program and its server
        )

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
        """Sends a request and returns the answer. ApiError: the server refuses it. ServerError: it is not reached.

        A request that a busy server did not begin is sent again, and also one with a key whose connection broke.
        """
        headers = {"Idempotency-Key": key} if key else {}
        left = self.retries
        while True:
            try:
                answer = await self.client.request(
                    method, path, json=json, content=content, params=_set(params), headers=headers
                )
            except httpx.TransportError as err:
                if key and left > 0:
                    left -= 1
                    await asyncio.sleep(0.2)
                    continue
                raise ServerError(f"the server at {self.url} did not answer: {err or type(err).__name__}") from err
            if answer.status_code < 400:
                return answer
            problem = error_of(answer.status_code, _problem(answer))
            again = left > 0 and problem.retryable and answer.status_code in (429, 503) and content is None
            if not again or problem.retry_after > LONGEST_WAIT:
                raise problem
            left -= 1
            await asyncio.sleep(problem.retry_after or 1)

    async def get(self, model: type[M], path: str, params: Mapping[str, Any] | None = None) -> M:
        """Returns what is at a path."""
        return model.model_validate_json((await self.send("GET", path, params=params)).content)

    async def post(self, model: type[M], path: str, json: Any = None, **more: Any) -> M:
        """Sends JSON and returns the answer."""
        return model.model_validate_json((await self.send("POST", path, json=json, **more)).content)

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Opens an answer that is read bit by bit."""
        try:
            async with self.client.stream("GET", path, params=_set(params), headers=headers) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    raise error_of(answer.status_code, _problem(answer))
                yield answer
        except httpx.TransportError as err:
            raise ServerError(f"the connection to {self.url} broke: {err or type(err).__name__}") from err

    async def events(self, path: str, params: Mapping[str, Any] | None = None, after: int = 0) -> AsyncIterator[Event]:
        """Yields server-sent events after a number, until the server ends them. It connects again if need be."""
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
        await self.client.aclose()


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
