"""Errors of the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._results import Result


class UnitaskError(Exception):
    """Any error of this package."""


class ServerError(UnitaskError):
    """The server could not be found, started or reached."""


class TooLargeError(UnitaskError):
    """What the code left is larger than the caller wants to read."""


class CodeError(UnitaskError):
    """Code did not end with exit code 0. ``Result.check`` raises it."""

    def __init__(self, result: Result) -> None:
        said = result.error or f"exit code {result.exit_code}"
        last = result.stderr.strip().splitlines()[-1:]
        super().__init__(": ".join([f"the code ended with {result.outcome}, {said}", *last]))
        self.result = result


class ApiError(UnitaskError):
    """The server refused a request.

    ``code`` is stable (docs/api.md lists the codes), and ``remedy`` says what to do. If ``retryable``, the same request
    may succeed later. ``retry_after`` is in seconds, 0 if the server says nothing.
    """

    def __init__(
        self, status: int, code: str, detail: str, remedy: str = "", retryable: bool = False, retry_after: float = 0
    ) -> None:
        super().__init__(detail + (f" ({remedy})" if remedy else ""))
        self.status, self.code, self.detail, self.remedy = status, code, detail, remedy
        self.retryable, self.retry_after = retryable, retry_after


class NotFoundError(ApiError):
    """You have no such run, session, file or value."""


class BusyError(ApiError):
    """A limit of the caller or of the server is reached. The same request may succeed later."""


class TokenError(ApiError):
    """The server does not accept the token, or this request."""


def error_of(status: int, problem: dict[str, object]) -> ApiError:
    """Returns the error for a problem document (RFC 9457), which is {} for an answer without one."""
    kind = {401: TokenError, 403: TokenError, 404: NotFoundError, 429: BusyError, 503: BusyError}.get(status, ApiError)
    after = problem.get("retryAfterMs")
    return kind(
        status,
        str(problem.get("code") or "http"),
        str(problem.get("detail") or problem.get("title") or f"the server answered with {status}"),
        str(problem.get("remedy") or ""),
        problem.get("retryable") is True,
        after / 1000 if isinstance(after, (int, float)) else 0,
    )
