"""Results of code, and how notebooks show them."""

from __future__ import annotations

import base64
import inspect
import mimetypes
from typing import Any, Protocol, TypeVar

from ._errors import CodeError, UnitaskError

SHOWN_BYTES = 8 << 20
"""Size in bytes of the largest picture that a notebook shows."""


class _Wire(Protocol):
    outcome: str
    exit_code: int
    stdout: str
    stderr: str
    stdout_base64: str | None
    stderr_base64: str | None
    error: str | None


R = TypeVar("R", bound="Result")


class Result:
    """The common part of the results of runs, steps and commands."""

    outcome: str
    exit_code: int
    stdout: str
    stderr: str
    error: str | None

    @property
    def ok(self) -> bool:
        """Whether the code ended by itself, with exit code 0."""
        return self.outcome == "exited" and self.exit_code == 0

    def check(self: R) -> R:
        """Returns the result. CodeError: the code did not end with exit code 0."""
        if not self.ok:
            raise CodeError(self)
        return self

    @property
    def stdout_bytes(self: _Wire) -> bytes:
        """The exact bytes of stdout, also if they are not UTF-8."""
        return base64.b64decode(self.stdout_base64) if self.stdout_base64 else self.stdout.encode()

    @property
    def stderr_bytes(self: _Wire) -> bytes:
        """The exact bytes of stderr, also if they are not UTF-8."""
        return base64.b64decode(self.stderr_base64) if self.stderr_base64 else self.stderr.encode()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Returns what a notebook shows, by MIME type: the output, and the first picture that the code left in /out."""
        shown = {"text/plain": (self.stdout + self.stderr) or repr(getattr(self, "value", None) or self.outcome)}
        for artifact in getattr(self, "artifacts", None) or []:
            kind = mimetypes.guess_type(artifact.path)[0] or ""
            reads = not inspect.iscoroutinefunction(artifact.read)
            if kind in ("image/png", "image/jpeg") and reads and artifact.size <= SHOWN_BYTES:
                try:
                    shown[kind] = base64.b64encode(artifact.read()).decode()
                except (UnitaskError, RuntimeError):  # the server has ended, or the client is closed
                    pass
                break
        return shown
