"""Inspect's sandbox "unitask": each sample of an evaluation has a machine.

>>> Task(dataset=…, solver=…, sandbox="unitask")
>>> Task(dataset=…, solver=…, sandbox=SandboxEnvironmentSpec("unitask", UnitaskSandboxConfig(memory_mb=1024)))
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, overload

from pydantic import BaseModel

from .._async._client import AsyncClient
from .._async._sessions import AsyncSession
from .._errors import BusyError, NotFoundError, ServerError, TooLargeError, UnitaskError
from ._common import end_with, execute, file_error, missing

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
except ImportError as err:
    raise missing("inspect-ai", err) from err


class UnitaskSandboxConfig(BaseModel, frozen=True):
    """The machine of a sample. The members are arguments of Client.session."""

    image: str | None = None
    packages: tuple[str, ...] = ()
    allow_net: tuple[str, ...] = ()
    allow_http: tuple[str, ...] = ()
    memory_mb: int | None = None
    cpus: float | None = None
    root: bool = False


@sandboxenv(name="unitask")
class UnitaskSandboxEnvironment(SandboxEnvironment):
    """A session of a sample. Relative paths begin at /work. The users are user and, with ``root``, root."""

    def __init__(self, client: AsyncClient, session: AsyncSession, config: UnitaskSandboxConfig) -> None:
        super().__init__()
        self.session, self.config, self._client = session, config, client
        self._forget = end_with(self, session)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """Returns how many machines run at once if the evaluation does not say."""
        return os.cpu_count()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Returns the configuration of a log."""
        return UnitaskSandboxConfig(**config)

    @classmethod
    async def start(cls, config: SandboxEnvironmentConfigType | None = None) -> UnitaskSandboxEnvironment:
        """Starts a machine. A configuration that is a text is the name of an image."""
        given = config if isinstance(config, UnitaskSandboxConfig) else UnitaskSandboxConfig(image=_image(config))
        client = AsyncClient()
        try:
            options = {name: value for name, value in given if value}
            return cls(client, await client.session("python", **options), given)
        except BaseException:
            await client.aclose()
            raise

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Starts the machine of a sample."""
        return {"default": await cls.start(config)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Ends the machine of a sample."""
        for one in environments.values():
            await one.as_type(UnitaskSandboxEnvironment).aclose()

    async def aclose(self) -> None:
        """Ends the machine."""
        try:
            await self.session.aclose()
            self._forget()
        finally:
            await self._client.aclose()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command. A command that took too long is not tried again."""
        if user not in (None, "user") and not (user == "root" and self.config.root):
            raise SandboxUserUnsupportedError(f"no user {user}: there are user, and root with a config of root=True")
        stdin = input.encode() if isinstance(input, str) else input
        try:
            ended = await execute(self.session, cmd, stdin=stdin, dir=cwd, env=env, user=user, timeout=timeout)
        except (NotFoundError, ServerError, BusyError) as err:
            raise SandboxUnavailableError(str(err)) from err
        stdout, stderr = ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")
        if ended.timed_out:
            raise TimeoutError(f"{cmd[0]}: {ended.error}")
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        if ended.truncated or max(len(ended.stdout), len(ended.stderr)) > most:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout[:most])
        if ended.exit_code == 126 and "permission denied" in stderr.lower():
            raise PermissionError(stderr.strip())
        return ExecResult(ended.exit_code == 0, ended.exit_code, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, with the folders above it."""
        try:
            await self.session.files.write(file, contents)
        except UnitaskError as err:
            raise file_error(err, file) or err from err

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file."""
        try:
            content = await self.session.files.read(file, limit=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except TooLargeError as err:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from err
        except UnitaskError as err:
            raise file_error(err, file) or err from err
        return content.decode() if text else content


def _image(config: SandboxEnvironmentConfigType | None) -> str | None:
    if config is not None and not isinstance(config, str):
        raise TypeError(f"the sandbox unitask takes a UnitaskSandboxConfig or an image's name, not {config!r}")
    return config or None
