"""llm-sandbox's backend "unitask", which the import of this module registers.

>>> import unitask.adapters.llm_sandbox
>>> with SandboxSession(backend="unitask", lang="python") as session:
...     session.run("print(6 * 7)").stdout
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._errors import UnitaskError
from .._sync._client import Client
from .._sync._sessions import Session, Task
from ._common import MAX_OUTPUT, end_with, file_error, missing

try:
    from llm_sandbox.backends import BackendCapabilities, register_backend
    from llm_sandbox.core.config import SessionConfig
    from llm_sandbox.core.session_base import BaseSession
    from llm_sandbox.data import ConsoleOutput, StreamCallback
    from llm_sandbox.exceptions import (
        CommandEmptyError,
        LanguageNotSupportedError,
        LibraryInstallationNotSupportedError,
        NotOpenSessionError,
    )
except ImportError as err:
    raise missing("llm-sandbox", err) from err

MAX_COPY = 1 << 30
"""Size in bytes of the largest file or folder that copy_from_runtime copies."""

LANGUAGES = {"python": "python", "javascript": "js"}
_CONFIG = ("verbose", "default_timeout", "execution_timeout", "session_timeout", "security_policy", "encoding_errors")


class UnitaskSession(BaseSession):
    """A session of llm-sandbox in a machine. ``libraries`` come with it, and none can be installed later."""

    def __init__(
        self,
        *,
        client: Client | None = None,
        lang: str = "python",
        image: str | None = None,
        workdir: str | None = None,
        container_id: str | None = None,
        libraries: list[str] | None = None,
        **options: Any,
    ) -> None:
        """Makes a session. ``container_id`` is the id of a unitask session; other options are Client.session's."""
        ignored = {"stream", "keep_template", "commit_container", "dockerfile", "runtime_configs"}
        given = {name: options.pop(name) for name in _CONFIG if options.get(name) is not None}
        self._options = {name: value for name, value in options.items() if name not in ignored and name not in _CONFIG}
        if lang not in LANGUAGES:
            raise LanguageNotSupportedError(lang)
        if libraries and lang != "python":
            raise LibraryInstallationNotSupportedError(lang)
        place = "/work" if workdir in (None, "/sandbox") else workdir  # which the code's user can write
        config = {"lang": lang, "image": image, "workdir": place, "container_id": container_id, **given}
        super().__init__(SessionConfig(**config))
        self.stream = False
        self.container: Any = None
        self._task: Task | None = None
        self._packages = [f"pip:{name}" for name in libraries or []]
        self._client, self._own = client or Client(), client is None

    @property
    def python_executable_path(self) -> str:
        """The image's Python."""
        return "python3"

    def install(self, libraries: list[str] | None = None) -> None:
        """LibraryInstallationNotSupportedError: the machine has no way to get libraries."""
        if libraries:
            raise LibraryInstallationNotSupportedError(self.config.lang)

    def open(self) -> None:
        """Starts the machine."""
        if self.config.container_id:
            self._connect_to_existing_container(self.config.container_id)
        else:
            packages = [*self._options.pop("packages", []), *self._packages] or None
            language = LANGUAGES[self.config.lang]
            self.container = self._client.session(language, image=self.config.image, packages=packages, **self._options)
            self._forget = end_with(self, self.container)
        super().open()

    def _connect_to_existing_container(self, container_id: str) -> None:
        self.container = self._client.get_session(container_id)

    def close(self) -> None:
        """Ends the machine, unless it was there before."""
        super().close()
        session, self.container = self.container, None
        if session is not None and not self.using_existing_container:
            session.close()
            self._forget()
        if self._own:
            self._client.close()

    def _handle_timeout(self) -> None:
        if self.container is not None and not self.using_existing_container:
            self.close()
        elif self.container is not None and self._task is not None:
            self._task.cancel()

    def execute_command(
        self,
        command: str,
        workdir: str | None = None,
        on_stdout: StreamCallback | None = None,
        on_stderr: StreamCallback | None = None,
    ) -> ConsoleOutput:
        """Runs a command line by sh. It has at most 16 MiB of output."""
        if not command:
            raise CommandEmptyError
        session: Session | None = self.container
        if session is None:
            raise NotOpenSessionError
        task = self._task = session.start("sh", "-c", command, dir=workdir or self.config.workdir)
        try:
            if on_stdout or on_stderr:
                for event in task.events():
                    tell = {"stdout": on_stdout, "stderr": on_stderr}.get(event.kind)
                    if tell:
                        tell(event.text)
            result = task.result()
        except BaseException:
            task.cancel()
            raise
        run, cut = self._client.get_run(task.id), result.cut or []
        stdout = run.stdout(MAX_OUTPUT) if "stdout" in cut else result.stdout_bytes
        stderr = run.stderr(MAX_OUTPUT) if "stderr" in cut else result.stderr_bytes
        errors = self.config.encoding_errors
        return ConsoleOutput(result.exit_code, stderr.decode(errors=errors), stdout.decode(errors=errors))

    def copy_to_runtime(self, src: str, dest: str) -> None:
        """Copies a file or folder into the machine. The place of a folder must be free."""
        if self.container is None:
            raise NotOpenSessionError
        path = self._validate_container_path(dest)
        if Path(src).is_dir():
            self.container.files.upload_folder(src, path)
        elif Path(src).is_file():
            self.container.files.upload(src, path)
        else:
            raise FileNotFoundError(f"Source path {src} does not exist or is not accessible")

    def copy_from_runtime(self, src: str, dest: str) -> None:
        """Copies a file or folder out of the machine, of 1 GiB at most. The place of a folder must be free."""
        if self.container is None:
            raise NotOpenSessionError
        try:
            if self.container.files.stat(src).kind == "folder":
                self.container.files.download_folder(src, dest, limit=MAX_COPY)
            else:
                Path(dest).parent.mkdir(parents=True, exist_ok=True)
                self.container.files.download(src, dest, limit=MAX_COPY)
        except UnitaskError as err:
            raise file_error(err, src) or err from err

    def _ensure_directory_exists(self, path: str) -> None:
        self.container.files.mkdir(path)

    def _ensure_ownership(self, paths: list[str]) -> None:
        pass  # files belong to the code's user

    def _process_non_stream_output(self, output: Any) -> tuple[str, str]:
        raise NotImplementedError  # execute_command does it

    _process_stream_output = _process_non_stream_output


register_backend(
    "unitask",
    UnitaskSession,
    capabilities=BackendCapabilities(filesystem_isolation=True, network_isolation=True, container_images=True),
)
