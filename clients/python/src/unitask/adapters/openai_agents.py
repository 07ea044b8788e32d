"""The OpenAI Agents SDK's sandbox client: the workspace of a SandboxAgent is in a machine.

>>> from unitask.adapters.openai_agents import UnitaskSandboxClient
>>> Runner.run(agent, "…", run_config=RunConfig(sandbox=SandboxRunConfig(client=UnitaskSandboxClient())))
"""

from __future__ import annotations

import contextlib
import io
import itertools
import posixpath
import shlex
import tarfile
import uuid
from pathlib import Path
from typing import Any, Literal

from .._async._client import AsyncClient
from .._async._sessions import AsyncSession
from .._errors import ApiError, NotFoundError, UnitaskError
from ._common import MAX_FILE, Ended, end_with, execute, file_error, missing

try:
    from agents.sandbox import Manifest
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
        WorkspaceStartError,
        WorkspaceWriteTypeError,
    )
    from agents.sandbox.session import Instrumentation, SandboxSession
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.session.sandbox_session_state import SandboxSessionState
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
    from agents.sandbox.types import ExecResult, User
    from agents.sandbox.util.tar_utils import validate_tarfile
except ImportError as err:
    raise missing("openai-agents", err) from err

MAX_ARCHIVE = 1 << 30
"""Size in bytes of the largest workspace that is saved."""

MAX_MEMBERS = 200_000
"""Files and folders in the largest tar that hydrate_workspace takes."""


class UnitaskSandboxClientOptions(BaseSandboxClientOptions):
    """Options of a session: ``session`` has the arguments of Client.session, such as image, allow_net and root."""

    type: Literal["unitask"] = "unitask"
    session: dict[str, Any] = {}


class UnitaskSandboxSessionState(SandboxSessionState):
    """What resume needs."""

    type: Literal["unitask"] = "unitask"
    machine: str = ""
    session: dict[str, Any] = {}


class UnitaskSandboxSession(BaseSandboxSession):
    """A workspace in a machine."""

    state: UnitaskSandboxSessionState

    def __init__(self, state: UnitaskSandboxSessionState, machine: AsyncSession) -> None:
        self.state, self.machine = state, machine
        self.state.machine = machine.id
        self._forget = end_with(self, machine)

    async def _prepare_backend_workspace(self) -> None:
        root = self.state.manifest.root
        try:
            made = await execute(self.machine, ["mkdir", "-p", "--", root], dir="/")
        except UnitaskError as err:
            raise WorkspaceStartError(path=Path(root), cause=err) from err
        if made.exit_code:
            raise WorkspaceStartError(path=Path(root), context={"stderr": made.stderr.decode(errors="replace")})

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        args = [str(part) for part in command]
        try:
            ended: Ended = await execute(self.machine, args, dir=self.state.manifest.root, timeout=timeout)
        except UnitaskError as err:
            retryable = isinstance(err, ApiError) and err.retryable
            raise ExecTransportError(command=args, cause=err, retryable=retryable) from err
        if ended.timed_out:
            raise ExecTimeoutError(command=args, timeout_s=timeout)
        return ExecResult(stdout=ended.stdout, stderr=ended.stderr, exit_code=ended.exit_code)

    async def _read(self, path: Path, user: str | User | None, limit: int) -> bytes:
        at = await self._validate_path_access(path)
        try:
            return await self.machine.files.read(at.as_posix(), user=_name(user), limit=limit)
        except UnitaskError as err:
            if isinstance(file_error(err, str(path)), FileNotFoundError):
                raise WorkspaceReadNotFoundError(path=path, cause=err) from err
            raise WorkspaceArchiveReadError(path=path, cause=err) from err

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Reads a file of 100 MiB at most."""
        return io.BytesIO(await self._read(path, user, MAX_FILE))

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Writes a file."""
        at = await self._validate_path_access(path, for_write=True)
        content = _bytes(data, at)
        try:
            await self.machine.files.write(at.as_posix(), content, user=_name(user))
        except UnitaskError as err:
            raise WorkspaceArchiveWriteError(path=path, cause=err) from err

    async def running(self) -> bool:
        """Whether the session lives. A paused one does, since its next use resumes it."""
        try:
            await self.machine.info()
        except UnitaskError:
            return False
        return True

    @property
    def _archive(self) -> str:
        return f"/tmp/openai-agents-{self.state.session_id.hex}.tar"

    async def _tar(self, *args: str) -> None:
        result = await self.exec("tar", *args, shell=False)
        if not result.ok():
            raise OSError(f"{shlex.join(['tar', *args])}: {result.stderr.decode(errors='replace')}")

    async def persist_workspace(self) -> io.IOBase:
        """Returns the workspace as a tar of 1 GiB at most."""
        skipped = sorted(f"--exclude=./{path.as_posix()}" for path in self._persist_workspace_skip_relpaths())
        try:
            await self._tar("cf", self._archive, *skipped, ".")
            return io.BytesIO(await self.machine.files.read(self._archive, limit=MAX_ARCHIVE))
        except (UnitaskError, OSError) as err:
            raise WorkspaceArchiveReadError(path=self._workspace_root_path(), cause=err) from err
        finally:
            with contextlib.suppress(UnitaskError):
                await self.machine.files.remove(self._archive)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpacks a tar into the workspace. It must not be compressed, as it may come from a machine."""
        root = self._workspace_root_path()
        content = _bytes(data, root)
        try:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
                if sum(1 for _ in itertools.islice(tar, MAX_MEMBERS + 1)) > MAX_MEMBERS:
                    raise ValueError(f"the tar has more than {MAX_MEMBERS} members")
                validate_tarfile(tar, allow_external_symlink_targets=False)
            await self.machine.files.write(self._archive, content)
            await self._tar("xf", self._archive, "-C", root.as_posix())
        except (UnitaskError, OSError, ValueError, RecursionError, tarfile.TarError) as err:
            raise WorkspaceArchiveWriteError(path=root, cause=err) from err
        finally:
            with contextlib.suppress(UnitaskError):
                await self.machine.files.remove(self._archive)

    async def _shutdown_backend(self) -> None:
        await self.machine.aclose()
        self._forget()


class UnitaskSandboxClient(BaseSandboxClient[UnitaskSandboxClientOptions]):
    """Starts workspaces in machines. A session's shutdown ends its machine."""

    backend_id = "unitask"
    supports_default_options = True

    def __init__(self, client: AsyncClient | None = None) -> None:
        """Takes a client of unitask, or makes one."""
        self.client = client or AsyncClient()

    async def _start(self, state: UnitaskSandboxSessionState) -> UnitaskSandboxSession:
        environment = await state.manifest.environment.resolve()
        env = {name: value for name, value in environment.items() if value is not None}
        options = {"language": "python", **state.session, "env": {**state.session.get("env", {}), **env}}
        return UnitaskSandboxSession(state, await self.client.session(**options))

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: UnitaskSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Starts a machine. The workspace is /work, unless the manifest has another root than the usual one."""
        manifest = manifest or Manifest()
        if posixpath.normpath(manifest.root) == Manifest().root:
            manifest = manifest.model_copy(update={"root": "/work"})
        self._validate_manifest_for_create(manifest)
        id = uuid.uuid4()
        state = UnitaskSandboxSessionState(
            session_id=id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(id)),
            session=dict(options.session) if options else {},
        )
        return self._wrap_session(await self._start(state), instrumentation=Instrumentation())

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends the machine."""
        await session._inner.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Returns to a machine. If it has ended, a new one gets the snapshot of the workspace."""
        if not isinstance(state, UnitaskSandboxSessionState):
            raise TypeError("the state is not unitask's")
        state.assert_path_grants_rebound()
        try:
            found = await self.client.get_session(state.machine)
        except (NotFoundError, ValueError):
            state.workspace_root_ready = False
            return self._wrap_session(await self._start(state), instrumentation=Instrumentation())
        inner = UnitaskSandboxSession(state, found)
        inner._set_start_state_preserved(True)
        return self._wrap_session(inner, instrumentation=Instrumentation())

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Reads a state that serialize_session_state has made."""
        return self._deserialize_session_state_payload(payload, UnitaskSandboxSessionState)


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user


def _bytes(data: io.IOBase, path: Path) -> bytes:
    content = data.read()
    if isinstance(content, str):
        content = content.encode()
    if not isinstance(content, (bytes, bytearray)):
        raise WorkspaceWriteTypeError(path=path, actual_type=type(content).__name__)
    return bytes(content)
