"""The backend of LangChain's deep agents: their commands and files are in a machine.

>>> from unitask.adapters.deepagents import UnitaskSandbox
>>> with UnitaskSandbox() as backend:
...     agent = create_deep_agent(model=model, backend=backend)
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from .._errors import TooLargeError, UnitaskError
from .._sync._client import Client
from .._sync._sessions import Session
from ._common import MAX_FILE, end_with, file_error, missing

try:
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox
except ImportError as err:
    raise missing("deepagents", err) from err

_ERRORS: list[tuple[type[OSError], str]] = [
    (FileNotFoundError, "file_not_found"),
    (PermissionError, "permission_denied"),
    (IsADirectoryError, "is_directory"),
    (NotADirectoryError, "invalid_path"),
]


class UnitaskSandbox(BaseSandbox):
    """A session, as the backend of a deep agent. Commands begin in /work.

    The base class searches and edits files by GNU grep and python3 in the machine, so the image needs both.
    """

    def __init__(self, session: Session | None = None, *, timeout: int = 600, **options: Any) -> None:
        """Takes a session, or starts one with the options of Client.session.

        ``timeout`` is the time limit, in seconds, of commands that have none. close ends the session.
        """
        self._client = None if session else Client()
        self.timeout = timeout
        self.session = session or self._start(options)
        self._forget = end_with(self, self.session)

    def _start(self, options: dict[str, Any]) -> Session:
        assert self._client
        return self._client.session(**{"language": "shell", "image": "base", **options})

    @property
    def id(self) -> str:
        """The session's id."""
        return self.session.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command line by sh. Standard error is in the output. A time limit that strikes is exit code 124."""
        line = ("sh", "-c", 'exec 2>&1; exec sh -c "$1"', "sh", command)
        task = self.session.start(*line, timeout=self.timeout if timeout is None else timeout or None)
        try:
            result = task.result()
        except BaseException:  # Ctrl-C
            task.cancel()
            raise
        output = result.stdout + (f"\n{result.error}" if result.outcome == "timeout" else "")
        truncated = result.truncated or "stdout" in (result.cut or [])
        return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files, and returns how each went."""
        told = []
        for path, content in files:
            error = None if path.startswith("/") else "invalid_path"
            try:
                if not error:
                    self.session.files.write(path, content)
            except UnitaskError as err:
                error = _error(err, path)
            told.append(FileUploadResponse(path=path, error=error))
        return told

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files of 100 MiB at most, and returns how each went."""
        told = []
        for path in paths:
            content, error = None, None if path.startswith("/") else "invalid_path"
            try:
                if not error:
                    content = self.session.files.read(path, limit=MAX_FILE)
            except UnitaskError as err:
                error = _error(err, path)
            told.append(FileDownloadResponse(path=path, content=content, error=error))
        return told

    def close(self) -> None:
        """Ends the session."""
        try:
            self.session.close()
            self._forget()
        finally:
            if self._client:
                self._client.close()

    def __enter__(self) -> UnitaskSandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except UnitaskError:
            if err is None:
                raise


def _error(err: UnitaskError, path: str) -> str:
    """Returns deepagents' name of an error, or the error's text."""
    if isinstance(err, TooLargeError):
        return f"the file is too large: {err}"
    failed = file_error(err, path)
    return next((name for kind, name in _ERRORS if isinstance(failed, kind)), str(err))
