"""The common part of the synchronous and the asynchronous client: bodies, paths and server-sent events."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from ._errors import ServerError

MAX_EVENT = 16 << 20
"""Characters of the largest server-sent event that the client accepts."""

CodeFiles = Mapping[str, str] | Sequence[str | Mapping[str, str]]
"""Files for code: {name: content}, or a list of names of files on the server's host that its policy allows."""


def body(**members: Any) -> dict[str, Any]:
    """Returns the members that are not None, as a JSON object with names in camelCase."""
    return {camel(name): value for name, value in members.items() if value is not None}


def camel(name: str) -> str:
    """Returns memoryMb for memory_mb."""
    return re.sub(r"_([a-z])", lambda m: m.group(1).upper(), name)


def files_of(files: CodeFiles | None) -> list[Any] | None:
    """Returns files in the API's form. TypeError: ``files`` is a text."""
    if files is None:
        return None
    if isinstance(files, Mapping):
        return [{"name": name, "content": content} for name, content in files.items()]
    if isinstance(files, str):
        raise TypeError("files is a dict {name: content}, or a list")
    return [dict(one) if isinstance(one, Mapping) else one for one in files]


def many(text: Sequence[str] | None) -> list[str] | None:
    """Returns a list of texts. TypeError: ``text`` is a single text, which would become a list of letters."""
    if isinstance(text, str):
        raise TypeError(f"a list of texts is needed, not {text!r}")
    return None if text is None else list(text)


def path_of(*parts: str) -> str:
    """Returns a path below /v1, with slashes in parts quoted. ValueError: a part would lead to another path."""
    for part in parts:
        if part in ("", ".", ".."):
            raise ValueError(f"{part!r} is not an id or a name")
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def port_path(port: int, path: str) -> str:
    """Returns the path of an HTTP server in a session's machine. ValueError: ``path`` would lead out of the port."""
    plain = unquote(re.split("[?#]", path, maxsplit=1)[0]).replace("\\", "/")
    if ".." in plain.split("/") or "." in plain.split("/"):
        raise ValueError(f"the path {path!r} has . or .. in it")
    return f"/ports/{int(port)}/{path.removeprefix('/')}"


T = TypeVar("T")


async def in_thread(does: Callable[..., T], *args: Any, **options: Any) -> T:
    """Calls a function that blocks, in another thread."""
    return await asyncio.to_thread(does, *args, **options)


def in_place(does: Callable[..., T], *args: Any, **options: Any) -> T:
    """Calls a function in this thread. The synchronous client has this instead of in_thread."""
    return does(*args, **options)


@dataclass(frozen=True)
class Event:
    """An event of a run, a step, a command or a stream of the server.

    ``kind`` is begun, note, started, stdout, stderr, question, toolCall, lost or end. Client.events has begun and
    ended, and Files.watch has ready, change and overflow. docs/api.md has the members of ``data``.
    """

    number: int
    kind: str
    data: dict[str, Any]

    @property
    def bytes(self) -> bytes:
        """The output of an event stdout or stderr, as bytes."""
        if "base64" in self.data:
            return base64.b64decode(self.data["base64"])
        return str(self.data.get("text", "")).encode()

    @property
    def text(self) -> str:
        """The output of an event stdout or stderr, as text."""
        return self.bytes.decode(errors="replace")


class EventReader:
    """Reads server-sent events from text."""

    def __init__(self) -> None:
        self._line = ""
        self._kind, self._id = "", ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, text: str) -> Iterator[Event]:
        """Yields the events that end in the next text. ServerError: an event is too large or malformed."""
        self._line += text
        *lines, self._line = self._line.split("\n")
        self._size += len(text)
        if self._size > MAX_EVENT:
            raise ServerError("the server sent an event that is too large")
        for line in lines:
            line = line.removesuffix("\r")
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line == "":
                if self._data:
                    yield _event(self._id, self._kind, "\n".join(self._data))
                self._kind, self._data, self._size = "", [], len(self._line)
            elif name == "event":
                self._kind = value
            elif name == "data":
                self._data.append(value)
            elif name == "id":
                self._id = value


def _event(id: str, kind: str, data: str) -> Event:
    try:
        event = Event(int(id or 0), kind, json.loads(data))
    except ValueError as err:
        raise ServerError(f"the server sent what is no event: {err}") from err
    if not isinstance(event.data, dict):
        raise ServerError("the server sent what is no event: its data is no object")
    return event
