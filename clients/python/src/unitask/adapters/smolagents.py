"""smolagents' executor of Python: the code of a CodeAgent runs in a machine.

>>> from unitask.adapters.smolagents import UnitaskExecutor
>>> agent = CodeAgent(tools=[], model=model, executor=UnitaskExecutor())
"""

from __future__ import annotations

import json
import re
from typing import Any

from .._sync._client import Client
from .._sync._sessions import Session, SessionResult
from ._common import MAX_OUTPUT, end_with, missing

try:
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentExecutionError
except ImportError as err:
    raise missing("smolagents", err) from err

_PNG = "iVBORw0KGgo"  # how PNG begins, in base64


class UnitaskExecutor(RemotePythonExecutor):
    """Runs the code of an agent in a session. The machine starts with the first code.

    Variables and tools stay from step to step. The value of a step's last expression is its text.
    """

    def __init__(
        self,
        additional_imports: list[str] | None = None,
        logger: AgentLogger | None = None,
        allow_pickle: bool = False,
        *,
        client: Client | None = None,
        timeout: float = 60,
        **options: Any,
    ) -> None:
        """Makes an executor.

        ``additional_imports`` are packages of PyPI. ``timeout`` is each step's, in seconds. ``options`` are those of
        Client.session, such as image, allow_net and memory_mb.
        """
        super().__init__([], logger or AgentLogger(level=LogLevel.ERROR), allow_pickle)
        self.timeout = timeout
        self._client = client or Client()
        self._own = client is None
        self._options = {"image": "data", **options}  # the agent's tools need Pillow
        self._session: Session | None = None
        self.installed_packages = self.install_packages(additional_imports or [])

    @property
    def session(self) -> Session:
        """The session of the code. The first use starts it."""
        if self._session is None:
            packages = [*self._options.get("packages", []), *(f"pip:{name}" for name in self.installed_packages)]
            self._session = self._client.session("python", **{**self._options, "packages": packages or None})
            self._forget = end_with(self, self._session)
        return self._session

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Notes packages of PyPI for the machine. ValueError: it runs already, and has no way to get them."""
        if additional_imports and self._session is not None:
            names = ", ".join(additional_imports)
            raise ValueError(f"the machine runs already: give UnitaskExecutor the packages {names}, or the tools first")
        return additional_imports

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Runs code, and returns its output. AgentExecutionError: the code failed, or took too long."""
        result = self.session.run(code, timeout=self.timeout)
        stderr = result.stderr
        if result.truncated and not result.ok:  # a long final answer comes at the end of stderr
            stderr = self._client.get_run(result.run_id).stderr(MAX_OUTPUT).decode(errors="replace")
        if not result.ok:
            last = stderr.rstrip().rpartition("\n")[2]  # no regular expression: a stranger's text may be long
            answer = last.partition(self.FINAL_ANSWER_EXCEPTION + ": ")[2]
            if result.outcome == "exited" and answer.startswith(("safe:", "pickle:")):
                value = self._deserialize_final_answer(_tamed(answer), self.allow_pickle)
                return CodeOutput(output=value, logs=result.stdout, is_final_answer=True)
            raise AgentExecutionError(f"{result.stdout}\nExecuting code yielded an error:\n{_why(result)}", self.logger)
        return CodeOutput(output=result.value or None, logs=result.stdout, is_final_answer=False)

    def cleanup(self) -> None:
        """Ends the machine. The next code starts another one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._forget()
        if self._own:
            self._client.close()
            self._client = Client()


def _tamed(answer: str) -> str:
    """Returns an answer that smolagents can read without harm: a small text must not become a huge array.

    ValueError: a picture is not PNG, which is what smolagents writes. Pillow runs programs for other formats.
    """

    def check(one: dict[str, Any]) -> dict[str, Any]:
        kind = one.get("__type__")
        if kind == "ndarray" and not re.fullmatch(r"bool|(u?int|float|complex)\d{1,3}", str(one.get("dtype"))):
            one["dtype"] = "object"
        if kind == "PIL.Image" and not str(one.get("data")).startswith(_PNG):
            raise ValueError("the final answer has a picture that is not PNG")
        return one

    if not answer.startswith("safe:"):
        return answer
    return "safe:" + json.dumps(json.loads(answer.removeprefix("safe:"), object_hook=check))


def _why(result: SessionResult) -> str:
    if result.outcome == "timeout":
        return f"the code took too long: {result.error}"
    said = result.stderr.strip() or result.error or f"exit code {result.exit_code}"
    return "\n".join([said, *(hint.text for hint in result.hints)])
