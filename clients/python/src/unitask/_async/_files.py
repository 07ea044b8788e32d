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
from .._errors import ServerError, TooLargeError
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
    """Files of a session. Relative paths begin at /work.

    ``user`` is "user" (the default) or "root", which needs a session with ``root=True``.
    """

    def __init__(self, http: AsyncHTTP, session: str) -> None:
        self._http, self._at = http, path_of("sessions", session)

    async def read(self, path: str, *, user: str | None = None, limit: int | None = None) -> bytes:
        """Returns a file's bytes. NotFoundError: there is no such file. TooLargeError: it has more than ``limit``."""
        return await self._http.fetch(self._at + "/files", {"path": path, "user": user}, limit)

    async def read_text(self, path: str, *, user: str | None = None) -> str:
        """Returns a file's text. UnicodeDecodeError: the file is not UTF-8."""
        return (await self.read(path, user=user)).decode()

    async def write(
        self, path: str, content: str | bytes, *, mode: str | None = None, user: str | None = None
    ) -> _models.FileInfo:
        """Makes or replaces a file, with the folders above it. Text is written as UTF-8.

        ``mode`` is the permissions of a new file in octal, such as "0755"; "644" if not given.
        """
        data = content.encode() if isinstance(content, str) else content
        params = {"path": path, "mode": mode, "user": user}
        answer = await self._http.send("PUT", self._at + "/files", params=params, content=data)
        return self._http.read(_models.FileInfo, answer)

    async def download(
        self, path: str, to: str | os.PathLike[str], *, user: str | None = None, limit: int | None = None
    ) -> pathlib.Path:
        """Writes a file of the session to a path of this computer, and returns that path.

        TooLargeError: the file has more than ``limit`` bytes. A part of it is in ``to``.
        """
        target = pathlib.Path(to)
        params = {"path": path, "user": user}
        async with self._http.stream(self._at + "/files", params) as answer:
            with open(target, "wb") as out:
                async for chunk in answer.aiter_bytes(CHUNK):
                    _write(out, chunk, limit)
        return target

    async def upload(self, source: str | os.PathLike[str], path: str, *, user: str | None = None) -> _models.FileInfo:
        """Writes a file of this computer to the session, and returns its entry."""
        with open(source, "rb") as content:
            answer = await self._http.send(
                "PUT", self._at + "/files", params={"path": path, "user": user}, content=_chunks(content)
            )
        return self._http.read(_models.FileInfo, answer)

    async def list(self, path: str = ".", *, depth: int | None = None, user: str | None = None) -> Entries:
        """Returns the entries of a folder. ``depth`` is the levels of folders; 1, the default, is the folder alone."""
        params = {"path": path, "depth": depth, "user": user}
        return (await self._http.get(FileList, self._at + "/files/list", params)).entries

    async def stat(self, path: str, *, user: str | None = None) -> _models.FileInfo:
        """Returns the entry of a file or folder. NotFoundError: there is none."""
        return await self._http.get(_models.FileInfo, self._at + "/files/stat", {"path": path, "user": user})

    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Removes a file, or a folder with its contents."""
        await self._http.send("DELETE", self._at + "/files", params={"path": path, "user": user})

    async def mkdir(self, path: str, *, user: str | None = None) -> None:
        """Makes a folder, and the folders above it."""
        await self._http.send("POST", self._at + "/files/mkdir", json=_with_user(user, path=path))

    async def move(self, source: str, to: str, *, user: str | None = None) -> None:
        """Renames a file or folder."""
        await self._http.send("POST", self._at + "/files/move", json=_with_user(user, **{"from": source, "to": to}))

    def watch(self, path: str = ".", *, recursive: bool = False, user: str | None = None) -> AsyncIterator[Event]:
        """Yields changes in a folder, and below it if ``recursive``: the events ready, change and overflow.

        The stream ends with the session.
        """
        params = {"path": path, "recursive": recursive, "user": user}
        return self._http.events(self._at + "/files/watch", params)

    async def download_folder(self, path: str, to: str | os.PathLike[str], *, limit: int | None = None) -> pathlib.Path:
        """Writes a folder's files to a new folder of this computer, and returns that folder.

        FileExistsError: ``to`` exists. tarfile.FilterError: a link or a name leads out of the folder. RuntimeError:
        this Python is too old to unpack safely. TooLargeError: the folder's tar has more than ``limit`` bytes.
        """
        if not hasattr(tarfile, "data_filter"):
            raise RuntimeError("this Python can't unpack a stranger's tar safely: use 3.10.12, 3.11.4, 3.12 or newer")
        target = pathlib.Path(to)
        if target.exists():
            raise FileExistsError(f"{target} is there already")
        with tempfile.TemporaryFile() as kept:
            async with self._http.stream(self._at + "/tar", {"path": path}) as answer:
                async for chunk in answer.aiter_bytes(CHUNK):
                    _write(kept, chunk, limit)
            await in_thread(_unpack, kept, target)
        return target

    async def upload_folder(self, source: str | os.PathLike[str], path: str) -> None:
        """Writes a folder of this computer to a new folder of the session."""
        with tempfile.TemporaryFile() as kept:
            await in_thread(_pack, source, kept)
            await self._http.send("PUT", self._at + "/tar", params={"path": path}, content=_chunks(kept))


def _write(out: Any, chunk: bytes, limit: int | None) -> None:
    if limit is not None and out.tell() + len(chunk) > limit:
        raise TooLargeError(f"there are more than {limit} bytes")
    out.write(chunk)


def _unpack(kept: Any, target: pathlib.Path) -> None:
    kept.seek(0)
    target.mkdir()
    with tarfile.open(fileobj=kept) as archive:
        # Extract links last, so that nothing is written through a link. Python's filter has had holes there.
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
    """Values of a session. Code of every language reads and writes them as JSON in /work/.values/NAME.json."""

    def __init__(self, http: AsyncHTTP, session: str) -> None:
        self._http, self._session = http, session

    async def get(self, name: str) -> Any:
        """Returns a value. NotFoundError: there is no such value. ServerError: the value is no JSON."""
        answer = await self._http.send("GET", path_of("sessions", self._session, "values", name))
        try:
            return answer.json()
        except (ValueError, RecursionError) as err:
            raise ServerError(f"the value {name} is no JSON: {err}") from err

    async def set(self, name: str, value: Any) -> None:
        """Makes or replaces a value. TypeError: it can't become JSON."""
        await self._http.send("PUT", path_of("sessions", self._session, "values", name), json=value)

    async def names(self) -> list[str]:
        """Returns the names of all values, sorted."""
        return (await self._http.get(NameList, path_of("sessions", self._session, "values"))).names
