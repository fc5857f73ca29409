"""The server's port, asked on the host itself."""

import http.client
import re
import socket
import time
from typing import Any

_LISTEN = "0A"
_TABLES = (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6))
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}  # noqa: S104 - what the kernel calls any address


def ask(port: int, path: str, timeout: float) -> "dict[str, Any]":
    """GET ``path``: ``status`` and the answer's first bytes, or ``error`` (refused, timeout, ...)."""
    started = time.monotonic()
    link = http.client.HTTPConnection(address(port), port, timeout=timeout)
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


def address(port: int) -> str:
    """The address that somebody listens on, which need not be the loopback's; 127.0.0.1 when nobody does."""
    for table, family in _TABLES:
        for row in _rows(table):
            host, _, number = row[1].rpartition(":")
            if row[3] == _LISTEN and int(number, 16) == port:
                found = decode(host, family)
                return _LOOPBACK.get(found, found)
    return "127.0.0.1"


def decode(text: str, family: int) -> str:
    """An address as the kernel prints it: words of 32 bits, each with its lowest byte first."""
    raw = bytes.fromhex(text)
    return socket.inet_ntop(family, b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4)))


def _rows(table: str) -> "list[list[str]]":
    try:
        with open(table, encoding="ascii") as file:
            return [line.split() for line in file][1:]
    except OSError:
        return []
