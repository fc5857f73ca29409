"""``relay``: many connections to one port of this host, over the agent's own input and output.

A host behind an exec prefix may have a network of its own, which sshd's forwarding does not reach; this runs where the
server runs. After ``MAGIC`` both directions are frames: a header ``(kind, connection, length)`` and ``length`` bytes.
The client numbers the connections. Nothing is sent to the agent before its ``MAGIC`` was seen.
"""

import os
import selectors
import socket
import struct
import sys
import time
from typing import Any

MAGIC = b"hsops-relay 1\n"
HEADER = struct.Struct(">cII")
OPEN = b"O"  # to the agent: connect; from it: connected
DATA = b"D"
END = b"E"  # nothing more will come in this direction
CLOSE = b"C"  # the connection is over, or was refused; of connection 0, to the agent: leave
BEAT = b"B"  # the relay lives
LARGEST = 1 << 16
HELD = 64 << 20  # bytes kept for a server that does not read; then its connection is closed
_BEAT_S = 5.0


def pack(kind: bytes, number: int, data: bytes = b"") -> bytes:
    """One frame."""
    return HEADER.pack(kind, number, len(data)) + data


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> "list[tuple[bytes, int, bytes]]":
        """The frames that are whole now: (kind, connection, bytes)."""
        self._held += data
        found, at = [], 0
        while len(self._held) - at >= HEADER.size:
            kind, number, length = HEADER.unpack_from(self._held, at)
            if len(self._held) - at - HEADER.size < length:
                break
            start = at + HEADER.size
            at = start + length
            found.append((kind, number, bytes(self._held[start:at])))
        del self._held[:at]
        return found


def relay(params: "dict[str, Any]") -> None:
    """Serve connections until the client leaves. ``params``: port, on 127.0.0.1. A binary verb."""
    Relay(int(params["port"])).run()


class _Connection:
    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.out, self.ending = sock, bytearray(), False
        self.reads = True


class Relay:
    """One thread for all connections; a server that does not read holds up no other."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._open: dict[int, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._frames, self._written = Frames(), 0.0

    def run(self) -> None:
        """Until it is told to leave."""
        self._selector.register(0, selectors.EVENT_READ)
        self._write(MAGIC)
        while True:
            for key, events in self._selector.select(_BEAT_S):
                if key.fd == 0:
                    data = os.read(0, LARGEST)
                    if not data:
                        return
                    for kind, number, body in self._frames.feed(data):
                        if (kind, number) == (CLOSE, 0):
                            return
                        self._act(kind, number, body)
                elif key.data in self._open:
                    self._serve(key.data, events)
            if time.monotonic() - self._written >= _BEAT_S:
                self._write(pack(BEAT, 0))

    def _act(self, kind: bytes, number: int, body: bytes) -> None:
        if kind == OPEN:
            return self._connect(number)
        connection = self._open.get(number)
        if connection is None:
            return None
        if kind == DATA:
            connection.out += body
        elif kind == END:
            connection.ending = True
        if kind == CLOSE or len(connection.out) > HELD:
            return self._close(number)
        return self._flush(number)

    def _connect(self, number: int) -> None:
        try:
            sock = socket.create_connection(("127.0.0.1", self.port), 5.0)
        except OSError:
            return self._write(pack(CLOSE, number))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open[number] = _Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ, number)
        return self._write(pack(OPEN, number))

    def _serve(self, number: int, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(number)
        connection = self._open.get(number)
        if not (connection and events & selectors.EVENT_READ):
            return None
        try:
            data = connection.sock.recv(LARGEST)
        except BlockingIOError:
            return None
        except OSError:
            return self._close(number)
        if data:
            return self._write(pack(DATA, number, data))
        connection.reads = False
        self._write(pack(END, number))
        return self._flush(number)

    def _flush(self, number: int) -> None:
        """Send what the server takes now, pass on an end, and listen for what is still to come."""
        connection = self._open[number]
        try:
            if connection.out:
                del connection.out[: connection.sock.send(connection.out)]
            if connection.ending and not connection.out:
                connection.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            return self._close(number)
        if connection.ending and not connection.out and not connection.reads:
            return self._close(number)
        wanted = (selectors.EVENT_READ if connection.reads else 0) | (selectors.EVENT_WRITE if connection.out else 0)
        if wanted and connection.sock in self._selector.get_map():
            self._selector.modify(connection.sock, wanted, number)
        elif wanted:
            self._selector.register(connection.sock, wanted, number)
        elif connection.sock in self._selector.get_map():
            self._selector.unregister(connection.sock)
        return None

    def _close(self, number: int) -> None:
        connection = self._open.pop(number)
        if connection.sock in self._selector.get_map():
            self._selector.unregister(connection.sock)
        connection.sock.close()
        self._write(pack(CLOSE, number))

    def _write(self, data: bytes) -> None:
        """All of it: the client reads all the time."""
        self._written = time.monotonic()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
