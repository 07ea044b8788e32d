"""What the synchronous and the asynchronous client share: bodies, paths and server-sent events."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

MAX_EVENT = 16 << 20
"""Bytes of a server-sent event that the client accepts."""

CodeFiles = Mapping[str, str] | Sequence[str | Mapping[str, str]]
"""Files for code: {name: content}, or names of files of the server's host that its policy allows."""


def body(**members: Any) -> dict[str, Any]:
    """Returns the members that are set as a JSON object, with their names in camelCase."""
    return {camel(name): value for name, value in members.items() if value is not None}


def camel(name: str) -> str:
    """Returns memoryMb for memory_mb."""
    return re.sub(r"_([a-z])", lambda m: m.group(1).upper(), name)


def files_of(files: CodeFiles | None) -> list[Any] | None:
    """Returns files as the API has them."""
    if files is None:
        return None
    if isinstance(files, Mapping):
        return [{"name": name, "content": content} for name, content in files.items()]
    if isinstance(files, str):
        raise TypeError("files is a dict {name: content}, or a list")
    return [dict(one) if isinstance(one, Mapping) else one for one in files]


def many(text: Sequence[str] | None) -> list[str] | None:
    """Returns a list of texts. A single text is refused: it would become its letters."""
    if isinstance(text, str):
        raise TypeError(f"a list of texts is needed, not {text!r}")
    return None if text is None else list(text)


def path_of(*parts: str) -> str:
    """Returns a path below /v1. Slashes in a part are quoted."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


@dataclass(frozen=True)
class Event:
    """An event of a run or of a session.

    ``kind`` is begun, note, started, stdout, stderr, question, lost or end; of a session also ended. docs/api.md has
    the members of ``data``.
    """

    number: int
    kind: str
    data: dict[str, Any]

    @property
    def bytes(self) -> bytes:
        """The bytes of stdout and stderr."""
        if "base64" in self.data:
            return base64.b64decode(self.data["base64"])
        return str(self.data.get("text", "")).encode()

    @property
    def text(self) -> str:
        """The text of stdout and stderr."""
        return self.bytes.decode(errors="replace")


class EventReader:
    """Reads server-sent events from text."""

    def __init__(self) -> None:
        self._line = ""
        self._kind, self._data, self._id = "", [""][:0], ""
        self._size = 0

    def feed(self, text: str) -> Iterator[Event]:
        """Yields the events that end in text. ValueError: an event is too large, or no event."""
        self._line += text
        *lines, self._line = self._line.split("\n")
        self._size += len(text)
        if self._size > MAX_EVENT:
            raise ValueError("the server sent an event that is too large")
        for line in lines:
            line = line.removesuffix("\r")
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line == "":
                if self._data:
                    yield Event(int(self._id or 0), self._kind, json.loads("\n".join(self._data)))
                self._kind, self._data, self._size = "", [], len(self._line)
            elif name == "event":
                self._kind = value
            elif name == "data":
                self._data.append(value)
            elif name == "id":
                self._id = value
