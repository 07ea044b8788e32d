"""Each block of the README runs, but those of frameworks: tests/adapters has them."""

from __future__ import annotations

import pathlib
import re

import pytest

README = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
ALL = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
BLOCKS = [code for code in ALL if "unitask.adapters" not in code]


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: str(code).splitlines()[2])
def test_block(code: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_all_blocks_are_found() -> None:
    assert len(ALL) == README.count("```python")
