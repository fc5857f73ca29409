"""``direct``: the files of one folder over TLS connections beside SSH, for one client and as long as it is there.

The client made both certificates for this one pull and sent them over SSH; whoever has not its key is no client. The
port is bound to the address at which SSH came in, and only the machine that SSH came from is let in at all. A stranger
costs one thread that waits for a handshake, of which there are few and none for long.
"""

import contextlib
import os
import socket
import ssl
import threading
import time
from collections import deque
from typing import Any

from hsops.agent import protocol, send

HANDSHAKE_S = 5.0
STRANGERS = 32  # connections without a handshake yet: one more, and the oldest of them is closed
SILENT_S = 60.0  # of a client that takes nothing; between two requests it may be silent for longer
DESERTED_S = 300.0  # without a client's connection
TICK_S = 1.0
PIECE = 1 << 20
_KEEP_ALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


def direct(params: "dict[str, Any]") -> None:
    """Serve until the client leaves.

    ``params``: ``folder``; ``identity``, this end's key and certificate; ``peer``, the client's certificate (PEM);
    ``window``, bytes that may be under way on one connection, 0: as the system has it.
    Event, once: ``listening`` {"address", "port", "cores"}. Nothing follows.
    """
    client, _, address, _ = os.environ.get("SSH_CONNECTION", "   ").split(" ")
    if not address:
        raise protocol.Refusal("no-address", "the agent was not started by sshd: there is no address to listen at")
    context = _context(params["identity"], params["peer"])
    family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        _widen(listener, int(params["window"]))
        listener.bind(place)
        listener.listen(64)
        protocol.emit("listening", address=address, port=listener.getsockname()[1], cores=_cores())
        _Door(context, send.folder_of(params), client.partition("%")[0]).keep(listener)


def _cores() -> "int | None":
    """That this process may use: a container or ``taskset`` may leave it few of many."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _widen(listener: socket.socket, window: int) -> None:
    """Its connections have that from the first byte on; if less is allowed, what the system does is better."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/net/core/wmem_max") as file:
        if 0 < window <= int(file.read()):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, window)


def _context(identity: str, peer: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=peer)
    context.num_tickets = 0
    handle = os.memfd_create("hsops-identity")  # OpenSSL wants a file; the key is never on a disk
    try:
        os.write(handle, identity.encode())
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context


class _Door:
    """Lets the client in."""

    def __init__(self, context: ssl.SSLContext, folder: str, client: str) -> None:
        self._context, self._folder, self._client = context, folder, client
        self._strangers: deque[ssl.SSLSocket] = deque()
        self._lock = threading.Lock()
        self._known, self._used = 0, time.monotonic()

    def keep(self, listener: socket.socket) -> None:
        """Until the process is ended, or nobody has been here for long: the client's link may have died silently."""
        listener.settimeout(TICK_S)
        while self._known or time.monotonic() - self._used < DESERTED_S:
            try:
                connection, (address, *_) = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # no more descriptors
                time.sleep(TICK_S)
                continue
            try:
                if str(address).partition("%")[0] == self._client:
                    self._greet(connection)
            except (OSError, RuntimeError):  # it is gone already, or there are no more threads
                pass
            finally:
                connection.close()  # of one that was greeted only the empty shell is left

    def _greet(self, connection: socket.socket) -> None:
        _tune(connection)
        known = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._strangers.append(known)
            oldest = self._strangers.popleft() if len(self._strangers) > STRANGERS else None
        if oldest:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # its thread sees the end, and closes it
        threading.Thread(target=self._let_in, args=(known,), daemon=True).start()

    def _let_in(self, known: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError, protocol.Refusal), known:  # SSLError is an OSError
            try:
                known.settimeout(HANDSHAKE_S)
                known.do_handshake()
            finally:
                with self._lock, contextlib.suppress(ValueError):
                    self._strangers.remove(known)
            known.settimeout(SILENT_S)
            self._count(1)
            try:
                send.serve(_Tls(known), self._folder)
            finally:
                self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._known, self._used = self._known + change, time.monotonic()


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEP_ALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


class _Tls:
    """One client's connection. What is small is gathered: a record and a system call a header would cost more."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock, self._held, self._fill = sock, bytearray(PIECE), 0
        self._view, self._asked = memoryview(self._held), bytearray()

    def line(self) -> bytes:
        """The next request; a client that asks for nothing is waited for as long as it is there."""
        while b"\n" not in self._asked and len(self._asked) < send.LINE:
            try:
                more = self._sock.recv(send.LINE)
            except TimeoutError:
                continue
            if not more:
                return b""
            self._asked += more
        line, _, rest = bytes(self._asked).partition(b"\n")
        self._asked = bytearray(rest)
        return line

    def write(self, data: bytes) -> None:
        while data:
            taken = data[: PIECE - self._fill]
            self._view[self._fill : self._fill + len(taken)] = taken
            self._fill += len(taken)
            data = data[len(taken) :]
            if self._fill == PIECE:
                self.flush()

    def copy(self, handle: int, offset: int, length: int, total: "send.Sum | None") -> int:
        sent = 0
        while sent < length:
            room = self._view[self._fill : min(PIECE, self._fill + length - sent)]
            try:
                count = os.preadv(handle, [room], offset + sent)
            except OSError:  # a fault inside a frame: the caller fills it up and says so
                break
            if not count:
                break
            if total is not None:
                total.update(room[:count])
            sent, self._fill = sent + count, self._fill + count
            if self._fill == PIECE:
                self.flush()
        return sent

    def flush(self) -> None:
        self._sock.sendall(self._view[: self._fill])
        self._fill = 0
