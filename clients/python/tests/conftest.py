"""Tests take a real server: $UNITASK_URL, or one that they start with $UNITASK_BIN or unitask of $PATH."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import unitask


@pytest.fixture(scope="session")
def client() -> Iterator[unitask.Client]:
    with unitask.Client() as one:
        yield one


@pytest.fixture(scope="session")
def session(client: unitask.Client) -> Iterator[unitask.Session]:
    with client.session("python") as one:
        yield one


@pytest.fixture
async def async_client() -> AsyncIterator[unitask.AsyncClient]:
    async with unitask.AsyncClient() as one:
        yield one
