"""A server in memory, for tests of programs that use this package. It runs no code: your function gives the results.

>>> from unitask import Client
>>> from unitask.mock import MockServer
>>> server = MockServer(lambda request: "42\\n" if "6 * 7" in request["code"] else 1)
>>> client = Client(transport=server.transport)
>>> client.run("print(6 * 7)").stdout
'42\\n'
>>> server.requests[0]["language"]
'python'
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import unquote

import httpx

Answer = str | int | dict[str, Any] | None
"""A result: the output, the exit code, or members of the result: {"stdout": …, "exitCode": …, "value": …}."""

_ROUTES: list[tuple[str, str, str]] = [
    ("POST", r"/v1/runs", "create_run"),
    ("GET", r"/v1/runs", "list_runs"),
    ("GET", r"/v1/runs/([^/]+)/result", "result"),
    ("GET", r"/v1/runs/([^/]+)/(stdout|stderr)", "output"),
    ("GET", r"/v1/(?:sessions/[^/]+/)?runs/([^/]+)/events", "events"),
    ("POST", r"/v1/runs/([^/]+)/cancel", "cancel"),
    ("GET", r"/v1/runs/([^/]+)/artifacts", "artifacts"),
    ("GET", r"/v1/runs/([^/]+)/artifacts/(.+)", "artifact"),
    ("GET", r"/v1/approvals", "questions"),
    ("GET", r"/v1/about", "about"),
    ("POST", r"/v1/sessions", "create_session"),
    ("GET", r"/v1/sessions", "list_sessions"),
    ("GET", r"/v1/sessions/([^/]+)", "get_session"),
    ("DELETE", r"/v1/sessions/([^/]+)", "end_session"),
    ("POST", r"/v1/sessions/([^/]+)/(pause|resume|extend)", "change_session"),
    ("POST", r"/v1/sessions/([^/]+)/fork", "fork_session"),
    ("POST", r"/v1/sessions/([^/]+)/(steps|commands)", "work"),
    ("GET", r"/v1/sessions/([^/]+)/files", "read_file"),
    ("PUT", r"/v1/sessions/([^/]+)/files", "write_file"),
    ("DELETE", r"/v1/sessions/([^/]+)/files", "remove_file"),
    ("GET", r"/v1/sessions/([^/]+)/files/list", "list_files"),
    ("GET", r"/v1/sessions/([^/]+)/files/stat", "stat_file"),
    ("GET", r"/v1/sessions/([^/]+)/values", "list_values"),
    ("GET", r"/v1/sessions/([^/]+)/values/([^/]+)", "get_value"),
    ("PUT", r"/v1/sessions/([^/]+)/values/([^/]+)", "put_value"),
]


class _Refused(Exception):
    def __init__(self, status: int, code: str, detail: str) -> None:
        self.status, self.code, self.detail = status, code, detail


class MockServer:
    """A server in memory. Its ``transport`` is for Client and AsyncClient."""

    def __init__(self, does: Callable[[dict[str, Any]], Answer] | None = None) -> None:
        """Makes a server. ``does`` gets the JSON of each run, step and command, and returns its result.

        The JSON of a step or command has the session's id as "session". The client's caller gets an exception of
        ``does``.
        """
        self.does = does or (lambda request: None)
        self.requests: list[dict[str, Any]] = []
        self.results: dict[str, dict[str, Any]] = {}
        self.out: dict[str, dict[str, bytes]] = {}
        self.sessions: dict[str, dict[str, Any]] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.values: dict[str, dict[str, Any]] = {}
        self.transport = httpx.MockTransport(self._answer)
        self._last = 0

    def _answer(self, request: httpx.Request) -> httpx.Response:
        for method, path, name in _ROUTES:
            if found := re.fullmatch(path, request.url.raw_path.partition(b"?")[0].decode()):
                if request.method == method:
                    try:
                        return getattr(self, "_" + name)(request, *map(unquote, found.groups()))  # type: ignore[no-any-return]
                    except _Refused as no:
                        return _problem(no.status, no.code, no.detail)
        return _problem(501, "mock", f"unitask.mock has no {request.method} {request.url.path}")

    def _id(self) -> str:
        self._last += 1
        return f"20260101-000000000-{self._last:06x}"

    def _do(self, asked: dict[str, Any], **more: Any) -> dict[str, Any]:
        self.requests.append({**asked, **more})
        answer = self.does(self.requests[-1])
        if isinstance(answer, str):
            answer = {"stdout": answer}
        elif isinstance(answer, int):
            answer = {"exitCode": answer}
        answer = dict(answer or {})
        id = self._id()
        self.out[id] = {name: bytes(content) for name, content in answer.pop("out", {}).items()}
        self.results[id] = {
            "runId": id,
            "outcome": "exited",
            "exitCode": 0,
            "stdout": "",
            "stderr": "",
            "truncated": False,
            "timedOut": False,
            "oom": False,
            "policy": {"effective": {}, "denials": []},
            "artifacts": [_artifact(name, content) for name, content in self.out[id].items()],
            "durationMs": {"total": 0, "boot": 0, "connect": 0, "run": 0},
            **answer,
        }
        return self.results[id]

    def _create_run(self, request: httpx.Request) -> httpx.Response:
        result = self._do(json.loads(request.content))
        if request.url.params.get("wait") == "false":
            return httpx.Response(202, json={"runId": result["runId"], "status": "done"})
        return httpx.Response(200, json=result)

    def _list_runs(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"runs": []})

    def _found(self, id: str) -> dict[str, Any]:
        if id not in self.results:
            raise _Refused(404, "run.gone", f"there is no run {id}")
        return self.results[id]

    def _result(self, request: httpx.Request, id: str) -> httpx.Response:
        return httpx.Response(200, json=self._found(id))

    def _output(self, request: httpx.Request, id: str, stream: str) -> httpx.Response:
        return httpx.Response(200, content=self._found(id)[stream].encode())

    def _events(self, request: httpx.Request, id: str) -> httpx.Response:
        result = self._found(id)
        told: list[tuple[str, Any]] = [("begun", {"runId": id}), ("started", {})]
        told += [(stream, {"text": result[stream]}) for stream in ("stdout", "stderr") if result[stream]]
        told.append(("end", result))
        after = int(request.headers.get("Last-Event-ID", "0"))
        text = "".join(
            f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
            for number, (kind, data) in enumerate(told, 1)
            if number > after
        )
        return httpx.Response(200, text=text, headers={"Content-Type": "text/event-stream"})

    def _cancel(self, request: httpx.Request, id: str) -> httpx.Response:
        return httpx.Response(200, json={"runId": self._found(id)["runId"], "status": "done"})

    def _artifacts(self, request: httpx.Request, id: str) -> httpx.Response:
        return httpx.Response(200, json={"artifacts": self._found(id)["artifacts"]})

    def _artifact(self, request: httpx.Request, id: str, path: str) -> httpx.Response:
        self._found(id)
        if path not in self.out[id]:
            raise _Refused(404, "path", f"there is no artifact {path}")
        return httpx.Response(200, content=self.out[id][path])

    def _questions(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"questions": []})

    def _about(self, request: httpx.Request) -> httpx.Response:
        about = {"version": "mock", "languages": ["python"], "images": ["python"], "sessionImages": ["python"]}
        return httpx.Response(200, json=about)

    def _session(self, id: str) -> dict[str, Any]:
        if id not in self.sessions:
            raise _Refused(404, "session.gone", f"there is no session {id}")
        return self.sessions[id]

    def _new_session(self, language: str, image: str, **more: Any) -> dict[str, Any]:
        id, now = self._id(), datetime.now(timezone.utc)
        self.files[id], self.values[id] = {}, {}
        self.sessions[id] = {
            "id": id,
            "language": language,
            "image": image,
            "began": now.isoformat(),
            "expiresAt": (now + timedelta(days=1)).isoformat(),
            "paused": False,
            **more,
        }
        return self.sessions[id]

    def _create_session(self, request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content)
        language = asked.get("language", "js")
        made = self._new_session(language, asked.get("image", language))
        for file in asked.get("files", []):
            if isinstance(file, dict):
                self.files[made["id"]]["/work/" + file["name"]] = file["content"].encode()
        return httpx.Response(201, json={**made, "denials": []})

    def _list_sessions(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"sessions": list(self.sessions.values())})

    def _get_session(self, request: httpx.Request, id: str) -> httpx.Response:
        return httpx.Response(200, json=self._session(id))

    def _end_session(self, request: httpx.Request, id: str) -> httpx.Response:
        self._session(id)
        del self.sessions[id], self.files[id], self.values[id]
        return httpx.Response(204)

    def _change_session(self, request: httpx.Request, id: str, how: str) -> httpx.Response:
        self._session(id)["paused"] = how == "pause"
        return httpx.Response(200, json=self._session(id))

    def _fork_session(self, request: httpx.Request, id: str) -> httpx.Response:
        of, made = self._session(id), []
        for _ in range(json.loads(request.content or b"{}").get("count", 1)):
            made.append(self._new_session(of["language"], of["image"], parent=id))
            self.files[made[-1]["id"]] = dict(self.files[id])
            self.values[made[-1]["id"]] = dict(self.values[id])
        return httpx.Response(201, json={"sessions": made})

    def _work(self, request: httpx.Request, id: str, kind: str) -> httpx.Response:
        self._session(id)["paused"] = False
        result = self._do(json.loads(request.content), session=id)
        if request.url.params.get("wait") == "false":
            return httpx.Response(202, json={"runId": result["runId"], "session": id, "pid": 2})
        return httpx.Response(200, json={**result, "session": id, "hints": [], "durationMs": 0})

    def _path(self, request: httpx.Request, id: str) -> str:
        self._session(id)
        path = request.url.params["path"]
        return str(path) if path.startswith("/") else "/work/" + path

    def _read_file(self, request: httpx.Request, id: str) -> httpx.Response:
        path = self._path(request, id)
        if path not in self.files[id]:
            raise _Refused(404, "file", f"{path}: no such file")
        return httpx.Response(200, content=self.files[id][path])

    def _write_file(self, request: httpx.Request, id: str) -> httpx.Response:
        self.files[id][self._path(request, id)] = request.read()
        return self._stat_file(request, id)

    def _remove_file(self, request: httpx.Request, id: str) -> httpx.Response:
        path = self._path(request, id)
        below = [one for one in self.files[id] if one == path or one.startswith(path + "/")]
        if not below:
            raise _Refused(404, "file", f"{path}: no such file")
        for one in below:
            del self.files[id][one]
        return httpx.Response(204)

    def _list_files(self, request: httpx.Request, id: str) -> httpx.Response:
        folder = self._path(request, id).removesuffix("/.") + "/"
        entries = [_info(path, content) for path, content in sorted(self.files[id].items()) if path.startswith(folder)]
        return httpx.Response(200, json={"entries": entries, "more": False})

    def _stat_file(self, request: httpx.Request, id: str) -> httpx.Response:
        path = self._path(request, id)
        if path not in self.files[id]:
            raise _Refused(404, "file", f"{path}: no such file")
        return httpx.Response(200, json=_info(path, self.files[id][path]))

    def _list_values(self, request: httpx.Request, id: str) -> httpx.Response:
        self._session(id)
        return httpx.Response(200, json={"names": sorted(self.values[id]), "more": False})

    def _get_value(self, request: httpx.Request, id: str, name: str) -> httpx.Response:
        self._session(id)
        if name not in self.values[id]:
            raise _Refused(404, "value", f"there is no value {name}")
        return httpx.Response(200, json=self.values[id][name])

    def _put_value(self, request: httpx.Request, id: str, name: str) -> httpx.Response:
        self._session(id)
        self.values[id][name] = json.loads(request.content)
        return httpx.Response(204)


def _artifact(path: str, content: bytes) -> dict[str, Any]:
    return {"path": path, "size": len(content), "mode": "0644", "sha256": hashlib.sha256(content).hexdigest()}


def _info(path: str, content: bytes) -> dict[str, Any]:
    return {
        "path": path,
        "kind": "file",
        "size": len(content),
        "mode": "0644",
        "modified": "2026-01-01T00:00:00Z",
        "owner": "user",
        "group": "user",
    }


def _problem(status: int, code: str, detail: str) -> httpx.Response:
    problem = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail}
    return httpx.Response(
        status, json={**problem, "retryable": False}, headers={"Content-Type": "application/problem+json"}
    )
