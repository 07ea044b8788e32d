"""Finds a server, or starts one on this computer."""

from __future__ import annotations

import atexit
import collections
import os
import re
import shutil
import subprocess
import threading

from ._errors import ServerError

START_SECONDS = 60.0


class LocalServer:
    """A ``unitask serve`` of this process, on a loopback address. It ends with this process, however that ends."""

    def __init__(self, program: str | None = None, *arguments: str) -> None:
        """Starts the program: ``program``, $UNITASK_BIN, or unitask in $PATH. ServerError: it did not start."""
        program = program or os.environ.get("UNITASK_BIN") or shutil.which("unitask")
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
                start_new_session=True,  # Ctrl-C is for the code that uses it
            )
        except OSError as err:
            raise ServerError(f"start {program}: {err}") from err
        self._owner = os.getpid()
        self._said: collections.deque[str] = collections.deque(maxlen=20)
        self._ready = threading.Event()
        self.url = ""
        threading.Thread(target=self._read, name="unitask serve", daemon=True).start()
        atexit.register(self.close)
        self._ready.wait(START_SECONDS)
        if not self.url:
            self.close()
            raise ServerError(f"{program} serve did not start: " + " ".join(self._said))

    def _read(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
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
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the server with its sessions. It may be called twice."""
        if os.getpid() != self._owner:  # a fork of the process that started it
            return
        atexit.unregister(self.close)
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_lock = threading.Lock()
_server: LocalServer | None = None


def address_of(url: str | None) -> str:
    """Returns url, $UNITASK_URL, or the address of a server that this process starts once."""
    global _server
    url = url or os.environ.get("UNITASK_URL")
    if url:
        return url.rstrip("/")
    with _lock:
        if _server is None or not _server.running:
            _server = LocalServer()
        return _server.url
