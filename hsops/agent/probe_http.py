"""The server's port, seen from the host itself: who listens, and what it answers."""

import contextlib
import http.client
import os
import re
import time
from typing import Any

_LISTEN = "0A"


def listeners(port: int) -> "list[int | None]":
    """The processes that listen on a TCP port; None stands for one that this user cannot see. Empty: nobody listens."""
    sockets = _listening(port)
    found: dict[str, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and len(found) < len(sockets):
            for link in _links(int(name)):
                if link in sockets:
                    found[link] = int(name)
    return [found.get(link) for link in sorted(sockets)]


def ask(port: int, path: str, timeout: float) -> "dict[str, Any]":
    """GET ``path`` from 127.0.0.1: ``status`` and the first bytes of the answer, or ``error`` (refused, timeout)."""
    started = time.monotonic()
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        link.request("GET", path)
        response = link.getresponse()
        answer: dict[str, Any] = {"status": response.status, "body": response.read(500).decode("utf-8", "replace")}
    except ConnectionRefusedError:
        answer = {"error": "refused"}
    except TimeoutError:
        answer = {"error": "timeout"}
    except (OSError, http.client.HTTPException) as error:
        answer = {"error": re.sub(r"\W+", "-", type(error).__name__).lower()}
    finally:
        link.close()
    return {**answer, "took_s": round(time.monotonic() - started, 2)}


def _listening(port: int) -> "set[str]":
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            if row[3] == _LISTEN and int(row[1].rsplit(":", 1)[1], 16) == port:
                sockets.add(f"socket:[{row[9]}]")
    return sockets


def _links(pid: int) -> "list[str]":
    """What the descriptors of a process are; those that close while we look, or are not ours to see, are left out."""
    links = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(entry.path))
    return links
