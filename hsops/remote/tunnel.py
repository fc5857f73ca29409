"""A port here that leads to a port on the host, over the control connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import paramiko

from hsops.core.errors import HsopsError

_PIECE = 1 << 15
_BROKEN = (OSError, EOFError, paramiko.SSHException)


class Channel(Protocol):
    """What is needed of paramiko's channel, or of a relay's connection."""

    @property
    def eof_received(self) -> int: ...

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def shutdown_write(self) -> None: ...

    def close(self) -> None: ...


class Tunnel:
    """Listens on 127.0.0.1 until it is closed. A connection that the host refuses is closed at once.

    Args:
        open_channel: a new channel to the port on the host; it may raise an HsopsError.
    """

    def __init__(self, open_channel: Callable[[], Channel]) -> None:
        self._open_channel = open_channel
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[_Pair] = set()
        self._lock, self._closed = threading.Lock(), False
        self._acceptor = threading.Thread(target=self._accept, name="hsops-tunnel", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening and end every connection."""
        with self._lock:
            self._closed = True
            pairs = list(self._open)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        for pair in pairs:
            pair.close()
        self._acceptor.join(1.0)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="hsops-tunnel", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            pair = _Pair(client, self._open_channel())
        except HsopsError:
            client.close()
            return
        with self._lock:
            self._open.add(pair)
            closed = self._closed
        if not closed:
            pair.run()
        pair.close()
        with self._lock:
            self._open.discard(pair)


class _Pair:
    """A client's socket and its channel; each direction ends on its own (half-close)."""

    def __init__(self, client: socket.socket, channel: Channel) -> None:
        self._client, self._channel = client, channel
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        """Copy both ways until both have ended."""
        up = threading.Thread(target=self._up, name="hsops-tunnel", daemon=True)
        up.start()
        self._down()
        up.join()

    def close(self) -> None:
        """End both, from any thread."""
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
        with suppress(*_BROKEN):
            self._channel.close()
        self._client.close()

    def _up(self) -> None:
        with suppress(*_BROKEN):
            while data := self._client.recv(_PIECE):
                self._channel.sendall(data)
            self._channel.shutdown_write()

    def _down(self) -> None:
        try:
            while data := self._channel.recv(_PIECE):
                self._client.sendall(data)
            if not self._channel.eof_received:  # the connection died: the client must not take it for a whole answer
                raise EOFError
            self._client.shutdown(socket.SHUT_WR)
        except _BROKEN:
            self.close()
