"""``meet`` and ``reach``: do the hosts of one server reach each other where its ranks are to meet?

Who answers tells a token: a port of this machine's own, or of a stranger's, is no way to the first node.
"""

import os
import select
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hsops.agent import procs, protocol, runs

_BEAT_S = 0.25  # so soon it notices that who asked has gone, and gives the port back
_SIOCGIFADDR = 0x8915


def meet(params: "dict[str, Any]") -> "dict[str, Any]":
    """On the first node: listen for the others, until who asked goes away.

    ``params``: ``port``, 0 for a free one; ``patience_s``. One event, ``listening``: what ``_here`` tells, ``port`` and
    ``token``.

    Raises:
        Refusal: port-taken, port-unusable.
    """
    port, token = runs.free_port(int(params["port"]), "0.0.0.0"), os.urandom(8).hex()  # noqa: S104 - as the ranks do
    guests: list[socket.socket] = []  # each closes first: the port is not left waiting
    until = time.monotonic() + float(params["patience_s"])
    with socket.create_server(("", port)) as door:
        protocol.emit("listening", port=port, token=token, **_here())
        while time.monotonic() < until:
            if select.select([door], [], [], _BEAT_S)[0]:
                guests.append(door.accept()[0])
                guests[-1].sendall(token.encode())
            protocol.emit("beat")
    return {}


def reach(params: "dict[str, Any]") -> "dict[str, Any]":
    """On another node: try them all. ``params``: ``addresses``, ``port``, ``token``, ``patience_s``.

    ``failed``: address -> why; the others were reached. And what ``_here`` tells.
    """
    addresses = list(params["addresses"])
    with ThreadPoolExecutor(len(addresses)) as pool:
        said = zip(addresses, pool.map(lambda one: _try(one, params), addresses), strict=True)
        return {"failed": {address: why for address, why in said if why}, **_here()}


def _try(address: str, params: "dict[str, Any]") -> str:
    """Why it cannot be reached; "" when it can."""
    try:
        with socket.create_connection((address, int(params["port"])), timeout=float(params["patience_s"])) as way:
            told = way.recv(64).decode(errors="replace")
    except OSError as error:
        return error.strerror or str(error)
    return "" if told == params["token"] else "somebody else answers there"


def _here() -> "dict[str, Any]":
    """``addresses``: [interface, IPv4 address]; ``named``: what the host's own name resolves to; ``boot``."""
    try:
        named = [found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None)]
    except OSError:
        named = []
    return {"addresses": _addresses(), "named": named, "boot": procs.boot_id()}


def _addresses() -> "list[list[str]]":
    import fcntl

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        for _, name in socket.if_nameindex():
            try:
                asked = fcntl.ioctl(any_.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            except OSError:  # it has none, or is down
                continue
            found.append([name, socket.inet_ntoa(asked[20:24])])
    return found
