"""Tests of the adapters. Each file needs its framework: `make adapters` in unitask's repository installs them."""

from __future__ import annotations

import gc
import pathlib
import re
import time
from collections.abc import Callable

import pytest

import unitask

README = (pathlib.Path(__file__).parent.parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.fixture
def example(request: pytest.FixtureRequest) -> str:
    """The README's block about the adapter of the test's file."""
    name = request.path.stem.removeprefix("test_")
    (block,) = [code for code in BLOCKS if re.search(rf"unitask\.adapters\.{name}\b", code)]
    return str(block)


@pytest.fixture
def ends(client: unitask.Client) -> Callable[[str], None]:
    """Waits for a session's end, for 20 s at most."""

    def wait(id: str) -> None:
        until = time.monotonic() + 20
        while any(one.id == id for one in client.sessions()):
            gc.collect()
            assert time.monotonic() < until, f"the session {id} lives on"
            time.sleep(0.1)

    return wait
