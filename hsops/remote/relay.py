"""A port here that leads to a port behind a host's exec prefix, through the agent's ``relay``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hsops.agent.relay import CLOSE, DATA, END, HELD, LARGEST, MAGIC, OPEN, Frames, pack
from hsops.core.deadline import Deadline
from hsops.core.errors import HsopsError, RemoteError, UnreachableError
from hsops.remote.host import Stream
from hsops.remote.tunnel import Tunnel

_LEAVE_S = 3.0


@contextmanager
def relayed(start: Callable[[], Stream], host: str) -> Iterator[int]:
    """The local port while the context is open. A relay that ended is started anew by the next connection.

    Args:
        start: starts the agent's verb, with its input kept open.
        host: the host's name.

    Raises:
        HsopsError: the relay cannot be started.
    """
    relays = _Relays(start, host)
    relays.live()  # what is wrong is told here, not to the tunnel's clients
    tunnel = Tunnel(lambda: relays.live().open(Deadline().connect))
    try:
        yield tunnel.port
    finally:
        tunnel.close()
        relays.close()


class _Relays:
    def __init__(self, start: Callable[[], Stream], host: str) -> None:
        self._start, self._host = start, host
        self._lock = threading.Lock()
        self._relay: Relay | None = None

    def live(self) -> Relay:
        """The relay that runs, or a new one."""
        with self._lock:
            if self._relay and not self._relay.alive:
                self._relay.close()
                self._relay = None
            if not self._relay:
                self._relay = Relay(self._start(), self._host)
            return self._relay

    def close(self) -> None:
        with self._lock:
            if self._relay:
                self._relay.close()


class Relay:
    """One running relay and its connections.

    Args:
        stream: the verb's, with its input open.
        host: the host's name.

    Raises:
        RemoteError: it did not begin.
    """

    def __init__(self, stream: Stream, host: str) -> None:
        self._stream, self._host = stream, host
        self._lock, self._next, self.alive = threading.Lock(), 0, True
        self._channels: dict[int, Connection] = {}
        self._pieces = iter(stream)
        rest = self._greeted()
        self._reader = threading.Thread(target=self._read, args=(rest,), name="hsops-relay", daemon=True)
        self._reader.start()

    def open(self, seconds: float) -> Connection:
        """A new connection.

        Raises:
            UnreachableError: nothing listens there, or no answer came in ``seconds``.
        """
        with self._lock:
            self._next += 1
            connection = self._channels[self._next] = Connection(self, self._next)
        with suppress(HsopsError):
            self.send(OPEN, connection.number)
        if not connection.opened(seconds):
            self.forget(connection.number)
            raise UnreachableError("nothing listens there", host=self._host)
        return connection

    def send(self, kind: bytes, number: int, data: bytes = b"") -> None:
        """One frame to the agent."""
        with self._lock:
            self._stream.send(pack(kind, number, data))

    def forget(self, number: int) -> None:
        """A connection that nobody holds any more."""
        if self._channels.pop(number, None) and self.alive:
            with suppress(HsopsError):
                self.send(CLOSE, number)

    def close(self) -> None:
        """End the relay and every connection. Idempotent."""
        if self.alive:
            with suppress(HsopsError):
                self.send(CLOSE, 0)
        self._reader.join(_LEAVE_S)
        with suppress(HsopsError):
            self._stream.__exit__(None, None, None)

    def _greeted(self) -> bytes:
        """What came after the agent's greeting."""
        held = b""
        for piece in self._pieces:
            held += piece
            _, found, rest = held.partition(MAGIC)
            if found:
                return rest
        self._stream.__exit__(None, None, None)
        raise RemoteError(f"the relay to the server did not begin: {_reason(held, self._stream)}", host=self._host)

    def _read(self, rest: bytes) -> None:
        frames = Frames()
        with suppress(HsopsError, ValueError, OSError):  # the link died, or it was closed: all connections break
            self._tell(frames.feed(rest))
            for piece in self._pieces:
                self._tell(frames.feed(piece))
        self.alive = False
        for connection in list(self._channels.values()):
            connection.tell(CLOSE, b"")

    def _tell(self, frames: list[tuple[bytes, int, bytes]]) -> None:
        for kind, number, data in frames:
            if connection := self._channels.get(number):
                connection.tell(kind, data)


class Connection:
    """One connection, with the part of paramiko's channel that ``Tunnel`` needs."""

    def __init__(self, relay: Relay, number: int) -> None:
        self._relay, self.number = relay, number
        self._changed = threading.Condition()
        self._held, self._is_open, self._over = bytearray(), False, False
        self.eof_received = False

    def opened(self, seconds: float) -> bool:
        """Whether the agent has connected, within ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._over, seconds)
            return self._is_open

    def tell(self, kind: bytes, data: bytes) -> None:
        """A frame came."""
        with self._changed:
            self._held += data
            self._is_open = self._is_open or kind == OPEN
            self.eof_received = self.eof_received or kind == END
            self._over = self._over or kind == CLOSE or len(self._held) > HELD
            self._changed.notify_all()

    def recv(self, size: int) -> bytes:
        """Bytes, or none at the end; ``eof_received`` tells a whole answer from a broken one."""
        with self._changed:
            self._changed.wait_for(lambda: self._held or self.eof_received or self._over)
            data = bytes(self._held[:size])
            del self._held[:size]
            return data

    def sendall(self, data: bytes) -> None:
        """Raises EOFError when the relay has ended."""
        try:
            for start in range(0, len(data), LARGEST):
                self._relay.send(DATA, self.number, data[start : start + LARGEST])
        except HsopsError:
            raise EOFError from None

    def shutdown_write(self) -> None:
        """Nothing more will be sent."""
        with suppress(HsopsError):
            self._relay.send(END, self.number)

    def close(self) -> None:
        """From any thread."""
        self.tell(CLOSE, b"")
        self._relay.forget(self.number)


def _reason(said: bytes, stream: Stream) -> str:
    """The agent's error, or its last words."""
    for line in said.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(line)["error"]["message"])
    last = stream.finish().stderr.decode(errors="replace").strip().splitlines()
    return last[-1] if last else "it said nothing"
