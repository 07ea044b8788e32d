"""Functions of this program that the code in a machine calls."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import ArgsKwargs, to_jsonable_python

Functions = Mapping[str, Sequence[Any] | Mapping[str, Any]]
"""Functions by the module from which the code imports them: {"shop": [total]}, or {"shop": {"total": function}}."""


class FunctionTools:
    """Functions with the schemas of their arguments, which come from their type hints."""

    def __init__(self, functions: Functions) -> None:
        self._all: dict[tuple[str, str], TypeAdapter[Any]] = {}
        self.described: dict[str, list[dict[str, Any]]] = {}
        for server, group in functions.items():
            named = group if isinstance(group, Mapping) else {one.__name__: one for one in group}
            if len(named) != len(group):
                raise ValueError(f"two functions of {server} have the same name")
            self.described[server] = [self._describe(server, name, does) for name, does in named.items()]

    def _describe(self, server: str, name: str, does: Callable[..., Any]) -> dict[str, Any]:
        if not callable(does):
            raise TypeError(f"{server}.{name} is no function")
        adapter: TypeAdapter[Any] = TypeAdapter(does)  # type: ignore[arg-type]
        self._all[server, name] = adapter
        try:
            schema = adapter.json_schema()
        except Exception as err:
            raise TypeError(f"the arguments of {server}.{name} have no JSON schema: {err}") from err
        if schema.get("type") != "object":
            raise TypeError(f"{server}.{name} has arguments without names")
        return {"name": name, "description": inspect.getdoc(does) or "", "inputSchema": schema}

    def call(self, server: str, name: str, arguments: Mapping[str, Any]) -> Any:
        """Calls a function with checked arguments. The result of a coroutine function is awaitable."""
        return self._all[server, name].validate_python(ArgsKwargs((), dict(arguments)))


def result_of(value: Any) -> dict[str, Any]:
    """Returns the answer with a function's result. ValueError: it is not JSON, as NaN and half of a character."""
    told = {"result": to_jsonable_python(value)}
    json.dumps(told, allow_nan=False, ensure_ascii=False).encode()
    return told


def error_of(err: Exception) -> dict[str, Any]:
    """Returns the answer of a function that failed. The code sees the error's type and text."""
    try:
        text = f"{type(err).__name__}: {err}"
    except Exception:
        text = type(err).__name__
    return {"error": text[:60_000].encode(errors="replace").decode()}
