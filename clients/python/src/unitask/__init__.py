"""Run code that nobody trusts in a fresh virtual machine.

>>> import unitask
>>> unitask.run("print(6 * 7)").stdout
'42\\n'

AsyncClient has the same methods as Client, as coroutines.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any

from ._async._client import AsyncClient
from ._async._files import AsyncFiles, AsyncValues
from ._async._runs import AsyncArtifact, AsyncRun, AsyncRunResult
from ._async._sessions import AsyncSession, AsyncTask
from ._errors import ApiError, BusyError, CodeError, NotFoundError, ServerError, TokenError, TooLargeError, UnitaskError
from ._models import Denial, FileInfo, Hint, Image, Question, RunSummary
from ._results import Result
from ._server import LocalServer, url_of
from ._sync._client import Client
from ._sync._files import Files, Values
from ._sync._runs import Artifact, Run, RunResult
from ._sync._sessions import Session, SessionResult, Task
from ._wire import Event

__version__ = "0.1.0"
__all__ = [
    "ApiError",
    "Artifact",
    "AsyncArtifact",
    "AsyncClient",
    "AsyncFiles",
    "AsyncRun",
    "AsyncRunResult",
    "AsyncSession",
    "AsyncTask",
    "AsyncValues",
    "BusyError",
    "Client",
    "CodeError",
    "Denial",
    "Event",
    "FileInfo",
    "Files",
    "Hint",
    "Image",
    "LocalServer",
    "NotFoundError",
    "Question",
    "Result",
    "Run",
    "RunResult",
    "RunSummary",
    "ServerError",
    "Session",
    "SessionResult",
    "Task",
    "TokenError",
    "TooLargeError",
    "UnitaskError",
    "Values",
    "run",
    "session",
]

_lock = threading.Lock()
_clients: dict[str | None, Client] = {}


def _shared() -> Client:
    with _lock:
        url = url_of(None)
        if url not in _clients:
            _clients[url] = Client()
            atexit.register(_clients[url].close)
        return _clients[url]


def run(code: str, language: str = "python", **options: Any) -> RunResult:
    """Runs code in a fresh machine, with this process's client. The arguments are those of Client.run."""
    return _shared().run(code, language, **options)


def session(language: str = "python", **options: Any) -> Session:
    """Starts a session, with this process's client. The arguments are those of Client.session."""
    return _shared().session(language, **options)
