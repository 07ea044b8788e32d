"""Finds a server, or starts one on this computer."""

from __future__ import annotations

import atexit
import collections
import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import threading
import weakref

from ._errors import ServerError

START_SECONDS = 60.0


class LocalServer:
    """A ``unitask serve`` of this process, on a loopback address. It ends with this process, however that ends."""

    def __init__(self, program: str | None = None, *arguments: str) -> None:
        """Starts a server, and waits for it for 60 s at most.

        The program is ``program``, else $UNITASK_BIN, else the one in this package's wheel, else unitask of $PATH.
        ServerError: the server did not start.
        """
        program = program or os.environ.get("UNITASK_BIN") or _packaged() or shutil.which("unitask")
        if not program:
            raise ServerError(
                "there is no program unitask in $PATH: install it, set UNITASK_BIN to it, or UNITASK_URL to a server"
            )
        try:
            self._process = subprocess.Popen(
                [program, "serve", "--listen", "127.0.0.1:0", "--until-eof", "--drain", "1s", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process only
            )
        except OSError as err:
            raise ServerError(f"start {program}: {err}") from err
        self._owner = os.getpid()
        self._said: collections.deque[str] = collections.deque(maxlen=20)
        self._ready = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, name="unitask serve", daemon=True)
        self._reader.start()
        atexit.register(self.close)
        _all.add(self)
        try:
            self._ready.wait(START_SECONDS)
        except BaseException:  # Ctrl-C
            self.close()
            raise
        if not self.url:
            self.close()
            raise ServerError(f"{program} serve did not start: " + " ".join(self._said))

    def _read(self) -> None:
        assert self._process.stderr
        with self._process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").strip()
                self._said.append(text)
                found = re.search(r"serving (http://[0-9.]+:[0-9]+)", text)
                if found and not self.url:
                    self.url = found.group(1)
                    self._ready.set()
        self._ready.set()

    @property
    def running(self) -> bool:
        """Whether the server runs."""
        if os.getpid() == self._owner:
            return self._process.poll() is None
        host, _, port = self.url.removeprefix("http://").partition(":")
        try:
            socket.create_connection((host, int(port)), 5).close()
        except OSError:
            return False
        return True

    def _forked(self) -> None:
        # Otherwise the server would stay as long as this forked process.
        if self._process.stdin:
            self._process.stdin.close()

    def close(self) -> None:
        """Ends the server with its sessions. A second call does nothing."""
        if os.getpid() != self._owner:  # a forked process must not end its parent's server
            return
        atexit.unregister(self.close)
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)


def _packaged() -> str | None:
    """Returns the path of the program that this package's wheel has installed; None if there is none."""
    try:
        files = importlib.metadata.files("unitask") or []
    except importlib.metadata.PackageNotFoundError:  # the package's sources are used without installation
        return None
    found = [str(file.locate()) for file in files if file.name == "unitask" and file.parent.name == "bin"]
    return found[0] if found and os.access(found[0], os.X_OK) else None


_all: weakref.WeakSet[LocalServer] = weakref.WeakSet()
_lock = threading.Lock()
_server: LocalServer | None = None


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held the lock during the fork
    for server in list(_all):
        server._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def url_of(url: str | None) -> str | None:
    """Returns ``url`` or $UNITASK_URL, without slashes at its end; None if there is neither."""
    url = url or os.environ.get("UNITASK_URL")
    return url.rstrip("/") if url else None


def token_of(token: str | None) -> str:
    """Returns ``token`` or $UNITASK_TOKEN, "" if there is neither.

    ValueError: the token has a character that a header can't have. The message does not show the token.
    """
    token = (token or os.environ.get("UNITASK_TOKEN") or "").strip()
    if token and not re.fullmatch(r"[!-~]+", token):
        raise ValueError("the token has a space, a control character or another one that is not ASCII")
    return token


def started() -> str | None:
    """Returns the address of this process's server; None if it does not run."""
    server = _server
    return server.url if server and server.running else None


def local_address() -> str:
    """Returns the address of this process's server. Starts the server if it does not run."""
    global _server
    with _lock:
        if _server is None or not _server.running:
            _server = LocalServer()
        return _server.url
