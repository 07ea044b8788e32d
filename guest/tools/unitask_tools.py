"""Calls of the host's tools: from unitask_tools import NAME, then NAME.tool(argument=value).

Each call is one request to the host, on a connection of its own. A pause or a fork of the machine
breaks connections, and a call in progress then raises ToolError with the code "cut".
"""
import http.client as _http
import json as _json
import os as _os
import re as _re
import socket as _socket
import tempfile as _tempfile
import urllib.parse as _parse

_HOST = "10.0.2.3"
_LARGE_DIR = "/tmp/unitask-tools"
_CHUNK = 1 << 16

with open(_os.path.join(_os.path.dirname(_os.path.dirname(_os.path.realpath(__file__))), "index.json"), encoding="utf-8") as _f:
    _INDEX = _json.load(_f)


class ToolError(Exception):
    def __init__(self, code, message, server=None, tool=None):
        super().__init__(message)
        self.code, self.message, self.server, self.tool = code, message, server, tool


def _send(method, path, body=None, server=None, tool=None):
    connection = _http.HTTPConnection(_HOST, 80)
    try:
        connection.connect()
        connection.sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
        for option in "TCP_KEEPIDLE", "TCP_KEEPINTVL":
            if hasattr(_socket, option):
                connection.sock.setsockopt(_socket.IPPROTO_TCP, getattr(_socket, option), 1)
        connection.request(method, path, body, {"Connection": "close"})
        response = connection.getresponse()
        if response.getheader("Unitask-Large"):
            return _keep(response)
        answer = _json.loads(response.read())
    except (OSError, _http.HTTPException, ValueError) as e:
        raise ToolError("cut", "the call was cut off: the session was paused or forked, "
                        f"or the host ended it ({e})", server, tool) from None
    finally:
        connection.close()
    if "error" in answer:
        raise ToolError(answer["error"]["code"], answer["error"]["message"], server, tool)
    return answer.get("value")


def _keep(response):
    _os.makedirs(_LARGE_DIR, exist_ok=True)
    handle, name = _tempfile.mkstemp(".json", dir=_LARGE_DIR)
    size = 0
    with _os.fdopen(handle, "wb") as file:
        while part := response.read(_CHUNK):
            size += len(part)
            file.write(part)
    return {"file": name, "bytes": size}


class Server:
    """The tools of one server, as methods. In their names, _ replaces all characters but letters, digits and _."""

    def __init__(self, name):
        self._name = name

    def call(self, tool, arguments=None, /, **more):
        path = f"/call/{_parse.quote(self._name, safe='')}/{_parse.quote(tool, safe='')}"
        return _send("POST", path, _json.dumps({**(arguments or {}), **more}), self._name, tool)

    def __getattr__(self, key):
        names = _INDEX[self._name]
        found = key if key in names else next((n for n in names if _re.sub(r"[^A-Za-z0-9_]", "_", n) == key), None)
        if found is None and key.startswith("__") and key.endswith("__"):
            raise AttributeError(key)
        return lambda arguments=None, /, **more: self.call(found or key, arguments, **more)

    def __dir__(self):
        return list(_INDEX[self._name])


class tools:
    @staticmethod
    def search(text=""):
        return _send("GET", "/search?q=" + _parse.quote(text, safe=""))

    @staticmethod
    def describe(name):
        return _send("GET", "/describe?name=" + _parse.quote(name, safe=""))


def __getattr__(name):
    if name not in _INDEX:
        raise AttributeError(f"no tools {name!r} were granted: --tools NAME asks for them; these are there: {', '.join(_INDEX)}")
    return Server(name)
