"""Files of a session."""

from __future__ import annotations

import os
import pathlib
import tarfile
import tempfile
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel

from .. import _models
from .._errors import ServerError
from .._wire import Event, in_thread, path_of
from ._http import AsyncHTTP

CHUNK = 1 << 20


class FileList(BaseModel):
    """Entries of a folder."""

    entries: list[_models.FileInfo]


class NameList(BaseModel):
    """Names of values."""

    names: list[str]


Entries = list[_models.FileInfo]


class AsyncFiles:
    """Files of a session. A relative path begins at /work. ``user="root"`` needs a session with ``root=True``."""

    def __init__(self, http: AsyncHTTP, session: str) -> None:
        self._http, self._at = http, path_of("sessions", session)

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        """Returns a file's bytes."""
        return (await self._http.send("GET", self._at + "/files", params={"path": path, "user": user})).content

    async def read_text(self, path: str, *, user: str | None = None) -> str:
        """Returns a file's text, which is UTF-8."""
        return (await self.read(path, user=user)).decode()

    async def write(
        self, path: str, content: str | bytes, *, mode: str | None = None, user: str | None = None
    ) -> _models.FileInfo:
        """Writes a new file with its folders, or replaces one. ``mode`` is octal: "0755"."""
        data = content.encode() if isinstance(content, str) else content
        params = {"path": path, "mode": mode, "user": user}
        answer = await self._http.send("PUT", self._at + "/files", params=params, content=data)
        return self._http.read(_models.FileInfo, answer)

    async def download(self, path: str, to: str | os.PathLike[str], *, user: str | None = None) -> pathlib.Path:
        """Writes a file to a path of this computer."""
        target = pathlib.Path(to)
        params = {"path": path, "user": user}
        async with self._http.stream(self._at + "/files", params) as answer:
            with open(target, "wb") as out:
                async for chunk in answer.aiter_bytes(CHUNK):
                    out.write(chunk)
        return target

    async def upload(self, source: str | os.PathLike[str], path: str, *, user: str | None = None) -> _models.FileInfo:
        """Writes a file of this computer to the session."""
        with open(source, "rb") as content:
            answer = await self._http.send(
                "PUT", self._at + "/files", params={"path": path, "user": user}, content=_chunks(content)
            )
        return self._http.read(_models.FileInfo, answer)

    async def list(self, path: str = ".", *, depth: int | None = None, user: str | None = None) -> Entries:
        """Returns the entries of a folder, to a depth of 1 if not given."""
        params = {"path": path, "depth": depth, "user": user}
        return (await self._http.get(FileList, self._at + "/files/list", params)).entries

    async def stat(self, path: str, *, user: str | None = None) -> _models.FileInfo:
        """Returns an entry. NotFoundError: there is none."""
        return await self._http.get(_models.FileInfo, self._at + "/files/stat", {"path": path, "user": user})

    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Removes a file, or a folder with what is in it."""
        await self._http.send("DELETE", self._at + "/files", params={"path": path, "user": user})

    async def mkdir(self, path: str, *, user: str | None = None) -> None:
        """Makes a folder, with those above it."""
        await self._http.send("POST", self._at + "/files/mkdir", json=_with_user(user, path=path))

    async def move(self, source: str, to: str, *, user: str | None = None) -> None:
        """Gives a file or folder another name."""
        await self._http.send("POST", self._at + "/files/move", json=_with_user(user, **{"from": source, "to": to}))

    def watch(self, path: str = ".", *, recursive: bool = False, user: str | None = None) -> AsyncIterator[Event]:
        """Yields changes below a folder: events ready, change and overflow, without an end."""
        params = {"path": path, "recursive": recursive, "user": user}
        return self._http.events(self._at + "/files/watch", params)

    async def download_folder(self, path: str, to: str | os.PathLike[str]) -> pathlib.Path:
        """Writes a folder's files to a new folder of this computer. Links and names that lead out of it are refused."""
        if not hasattr(tarfile, "data_filter"):
            raise RuntimeError("this Python can't unpack a stranger's tar safely: use 3.10.12, 3.11.4, 3.12 or newer")
        target = pathlib.Path(to)
        if target.exists():
            raise FileExistsError(f"{target} is there already")
        with tempfile.TemporaryFile() as kept:
            async with self._http.stream(self._at + "/tar", {"path": path}) as answer:
                async for chunk in answer.aiter_bytes(CHUNK):
                    kept.write(chunk)
            await in_thread(_unpack, kept, target)
        return target

    async def upload_folder(self, source: str | os.PathLike[str], path: str) -> None:
        """Writes a folder of this computer to a new folder of the session."""
        with tempfile.TemporaryFile() as kept:
            await in_thread(_pack, source, kept)
            await self._http.send("PUT", self._at + "/tar", params={"path": path}, content=_chunks(kept))


def _unpack(kept: Any, target: pathlib.Path) -> None:
    kept.seek(0)
    target.mkdir()
    with tarfile.open(fileobj=kept) as archive:
        # Links come last, so nothing is written through one: Python's filter has had holes there.
        members = sorted(archive.getmembers(), key=lambda one: (one.issym(), one.islnk()))
        archive.extractall(target, members, filter="data")


def _pack(source: str | os.PathLike[str], kept: Any) -> None:
    with tarfile.open(fileobj=kept, mode="w") as archive:
        for entry in sorted(os.listdir(source)):
            archive.add(os.path.join(source, entry), arcname=entry, filter=_anonymous)
    kept.seek(0)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0  # the code need not know the users of this computer
    entry.uname = entry.gname = ""
    return entry


async def _chunks(content: Any) -> AsyncIterator[bytes]:
    while chunk := content.read(CHUNK):
        yield chunk


def _with_user(user: str | None, **members: str) -> dict[str, str]:
    return {**members, "user": user} if user else members


class AsyncValues:
    """Values of a session: JSON that code of every language reads and writes as /work/.values/NAME.json."""

    def __init__(self, http: AsyncHTTP, session: str) -> None:
        self._http, self._session = http, session

    async def get(self, name: str) -> Any:
        """Returns a value. NotFoundError: there is none."""
        answer = await self._http.send("GET", path_of("sessions", self._session, "values", name))
        try:
            return answer.json()
        except ValueError as err:
            raise ServerError(f"the value {name} is no JSON: {err}") from err

    async def set(self, name: str, value: Any) -> None:
        """Makes or replaces a value."""
        await self._http.send("PUT", path_of("sessions", self._session, "values", name), json=value)

    async def names(self) -> list[str]:
        """Returns the names, in order."""
        return (await self._http.get(NameList, path_of("sessions", self._session, "values"))).names
