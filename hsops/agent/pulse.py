"""The verb ``pulse``: does a server still give tokens, and what has its log said since the last time?"""

import os
from typing import Any

from hsops.agent import probe_http, procs

_MOST = 64 << 10


def pulse(params: "dict[str, Any]") -> "dict[str, Any]":
    """A canary of one token, and the log's newest lines.

    Params: ``pid`` of launch_server, ``port``, ``log``, ``since``: a place in it (-1: its end), ``patience_s``.
    """
    proc = procs.look(params["pid"])
    health = probe_http.ask(params["port"], "/health_generate", params["patience_s"])
    text, end = b"", params["since"]
    try:
        with open(os.path.expanduser(params["log"]), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if 0 <= end < size:
                file.seek(max(end, size - _MOST))
                text = file.read()
            end = size
    except OSError:
        pass
    return {
        "alive": bool(proc and not proc.zombie),
        "health": health,
        "text": text.decode("utf-8", "replace"),
        "end": end,
    }
