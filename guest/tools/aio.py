"""The same calls for asyncio: from unitask_tools.aio import NAME, then await NAME.tool(argument=value)."""
import asyncio as _asyncio

import unitask_tools as _sync
from unitask_tools import ToolError


class Server:
    def __init__(self, name):
        self._sync = getattr(_sync, name)

    def __getattr__(self, key):
        call = getattr(self._sync, key)
        return lambda *args, **more: _asyncio.to_thread(call, *args, **more)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Server(name)
