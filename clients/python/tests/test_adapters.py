"""Without its framework, an adapter names what to install."""

from __future__ import annotations

import importlib
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent.parent / "src" / "unitask" / "adapters"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
FRAMEWORKS = {"openai_agents": "agents", "autogen": "autogen_core"}


@pytest.mark.parametrize("name", NAMES)
def test_framework_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, FRAMEWORKS.get(name, name), None)
    extra = name.replace("_", "-")
    with pytest.raises(ImportError, match=rf"pip install 'unitask\[{extra}\]'"):
        importlib.import_module(f"unitask.adapters.{name}")
