"""AutoGen's code executor: code blocks of an agent run in a machine.

>>> from unitask.adapters.autogen import UnitaskCodeExecutor
>>> async with UnitaskCodeExecutor() as executor:
...     agent = CodeExecutorAgent("coder", code_executor=executor)
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

from .._async._client import AsyncClient
from .._async._sessions import AsyncSession, SessionResult
from ._common import end_with, missing

try:
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
except ImportError as err:
    raise missing("autogen", err) from err


class UnitaskCodeExecutorConfig(BaseModel):
    """The configuration of an executor."""

    timeout: float = 60
    session: dict[str, Any] = {}


class UnitaskCodeExecutor(CodeExecutor, Component[UnitaskCodeExecutorConfig]):
    """Runs Python and shell in a session. Variables of Python stay from block to block.

    As with AutoGen's other executors, a block that takes too long is a result with exit code 124.
    """

    component_config_schema = UnitaskCodeExecutorConfig
    component_provider_override = "unitask.adapters.autogen.UnitaskCodeExecutor"

    def __init__(self, *, client: AsyncClient | None = None, timeout: float = 60, **options: Any) -> None:
        """Makes an executor. ``timeout`` is each block's, in seconds. ``options`` are those of Client.session."""
        self.timeout, self._options = timeout, options
        self._given, self._client = client, client
        self._session: AsyncSession | None = None

    @property
    def session(self) -> AsyncSession:
        """The session of the code. ValueError: the executor has not started."""
        if self._session is None:
            raise ValueError("start the executor first, or use it with async with")
        return self._session

    async def start(self) -> None:
        """Starts the machine, unless it runs."""
        if self._session is None:
            self._client = self._given or AsyncClient()
            self._session = await self._client.session(**{"language": "python", **self._options})
            self._forget = end_with(self, self._session)

    async def stop(self) -> None:
        """Ends the machine."""
        session, self._session = self._session, None
        if session is not None:
            await session.aclose()
            self._forget()
        if self._client is not None and self._given is None:
            await self._client.aclose()
            self._client = None

    async def restart(self) -> None:
        """Starts a new machine."""
        await self.stop()
        await self.start()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        """Runs code blocks until one fails. ValueError: a block is in another language than Python and shell."""
        outputs, exit_code = [], 0
        for block in code_blocks:
            task = asyncio.ensure_future(self._execute(block))
            cancellation_token.link_future(task)
            result = await task
            outputs.append(result.stdout + result.stderr + (f"{result.value}\n" if result.value else ""))
            exit_code = result.exit_code
            if result.outcome != "exited":
                outputs.append(f"\n{result.error}")
            if not result.ok:
                break
        return CodeResult(exit_code=exit_code, output="".join(outputs))

    async def _execute(self, block: CodeBlock) -> SessionResult:
        language = block.language.lower()
        if language in ("python", "py", "python3"):
            return await self.session.run(block.code, language="python", timeout=self.timeout)
        if language in ("sh", "shell", "bash"):
            shell = "bash" if language == "bash" else "sh"
            return await self.session.exec(shell, "-c", block.code, timeout=self.timeout)
        raise ValueError(f"the executor runs python, sh and bash, not {block.language}")

    def _to_config(self) -> UnitaskCodeExecutorConfig:
        return UnitaskCodeExecutorConfig(timeout=self.timeout, session=self._options)

    @classmethod
    def _from_config(cls, config: UnitaskCodeExecutorConfig) -> UnitaskCodeExecutor:
        return cls(timeout=config.timeout, **config.session)
