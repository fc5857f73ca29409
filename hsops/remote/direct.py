"""TLS connections beside SSH: no ssh and sshd between two processes that hold the files anyway.

SSH is what makes them safe: over it the client hands the agent a certificate and key of the agent's own and the
certificate that it will show itself. Both are made for this one use and trusted by nobody else. Decision 0008 has the
argument.
"""

from __future__ import annotations

import datetime as dt
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.core.deadline import QUICK
from hsops.core.errors import AgentError, DeadlineError, UnreachableError
from hsops.remote.agent import Agent
from hsops.remote.host import FAR_S
from hsops.remote.scratch import PassedFile

FIRST_S = 2.0
"""Seconds for the first connection: a firewall that drops packets costs so much, once."""
_VALID = dt.timedelta(days=60)  # longer than any pull; the clocks of two machines may differ by days
_PIECE = 1 << 18
_IDLE_S = 30.0
_WINDOW = (
    4 << 20
)  # bytes under way on one far connection; the kernel's own begins at a hundredth of it, and grows slowly
_MOST = "/proc/sys/net/core/rmem_max"


class NoDirectWayError(UnreachableError):
    """There is no connection beside SSH: the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the agent listens: one address after the other is tried. ``cores`` of its machine: 0, not told."""

    addresses: tuple[str, ...]
    port: int
    cores: int = 0

    def __str__(self) -> str:
        address = self.addresses[0]
        return f"[{address}]:{self.port}" if ":" in address else f"{address}:{self.port}"


class Direct:
    """The agent's open door. Connections may be opened from several threads.

    Args:
        host: its name.
        place: where.
        context: has the client's key, and trusts the agent's certificate alone.
        certificate: the agent's, DER.
        far: a round trip takes long.
    """

    def __init__(
        self, host: str, place: Place, context: ssl.SSLContext, certificate: bytes, *, far: bool = False
    ) -> None:
        self.host, self.place, self._far = host, place, far
        self._context, self._certificate = context, certificate

    def connect(self, seconds: float = FIRST_S) -> Connection:
        """A connection to the agent, each end known to the other: the agent has begun to talk.

        In TLS 1.3 the client's part of the handshake is over before the agent has looked at its certificate.

        Raises:
            NoDirectWayError: there is none within ``seconds``, or somebody else answers.
        """
        until, said = time.monotonic() + seconds, ""
        for number, address in enumerate(self.place.addresses):
            left = (until - time.monotonic()) / (len(self.place.addresses) - number)
            try:
                return self._connect(address, max(0.05, left))
            except OSError as error:
                what = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
                said = f"{address} port {self.place.port}: {what}"
        raise NoDirectWayError(said, host=self.host)

    def _connect(self, address: str, seconds: float) -> Connection:
        until = time.monotonic() + seconds
        plain = _dial(address, self.place.port, seconds, window=_WINDOW if self._far else 0)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(max(0.05, until - time.monotonic()))
            sock = self._context.wrap_socket(plain)
        except BaseException:
            plain.close()
            raise
        try:
            if sock.getpeercert(binary_form=True) != self._certificate:
                raise OSError(0, "another certificate than the agent's")
            sock.settimeout(max(0.05, until - time.monotonic()))
            if not (first := sock.recv(1)):
                raise OSError(0, "the agent let nobody in")
            sock.settimeout(_IDLE_S)
        except BaseException:
            sock.close()
            raise
        return Connection(self.host, sock, first)


class Connection:
    """One connection to the agent. Reads come from one thread."""

    def __init__(self, host: str, sock: ssl.SSLSocket, first: bytes) -> None:
        self._host, self._sock, self._first = host, sock, first
        self._buffer = memoryview(bytearray(_PIECE))

    def send(self, data: bytes) -> None:
        """All of it.

        Raises:
            UnreachableError: the connection is lost.
        """
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise self._lost(error) from None

    def read(self, want: int) -> memoryview:
        """What has come, at least ``want`` bytes or a buffer full; nothing at the end. Valid until the next read.

        Raises:
            UnreachableError: the connection is lost, or nothing came for half a minute.
        """
        got, want = len(self._first), min(want, _PIECE)
        self._buffer[:got], self._first = self._first, b""
        try:
            while got < want and (count := self._sock.recv_into(self._buffer[got:])):
                got += count
        except OSError as error:
            raise self._lost(error) from None
        return self._buffer[:got]

    def close(self) -> None:
        """Close it. Idempotent."""
        with suppress(OSError):
            self._sock.close()

    def _lost(self, error: OSError) -> UnreachableError:
        if isinstance(error, TimeoutError):
            return DeadlineError(f"nothing came for {_IDLE_S:g} s", host=self._host)
        return UnreachableError(f"the direct connection was lost: {error.strerror or error}", host=self._host)


@contextmanager
def opened(agent: Agent, folder: str) -> Iterator[Direct]:
    """The agent's door to one dump folder, while the context is open.

    Raises:
        NoDirectWayError: there can be none: this machine, a prefix, an agent without an address.
        UnreachableError: SSH itself fails.
    """
    host = agent.host
    if host.via:
        raise NoDirectWayError("commands run behind an exec prefix (via), whose network may be another", host=host.name)
    if host.address is None:
        raise NoDirectWayError("it is this machine", host=host.name)
    ours, theirs, far = Identity.make(), Identity.make(), host.round_trip >= FAR_S
    params = {"folder": folder, "identity": theirs.both, "peer": ours.certificate, "window": _WINDOW if far else 0}
    with agent.stream("dumps-direct", deadline=QUICK, **params) as events:
        place = _listening(events, host.name, host.address)
        certificate = ssl.PEM_cert_to_DER_cert(theirs.certificate)
        yield Direct(host.name, place, _context(ours, theirs), certificate, far=far)


def _dial(address: str, port: int, seconds: float, *, window: int) -> socket.socket:
    """A TCP connection with so large a window, if the system lets us: it must be asked for before the first packet.

    Where it does not, its own way to the largest that it has is better.
    """
    if not window or _allowed(_MOST) < window:
        return socket.create_connection((address, port), seconds)
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    plain = socket.socket(family, kind, protocol)
    try:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        plain.settimeout(seconds)
        plain.connect(place)
    except BaseException:
        plain.close()
        raise
    return plain


def _allowed(name: str) -> int:
    try:
        return int(Path(name).read_text("ascii"))
    except (OSError, ValueError):
        return 0


def _listening(events: Iterator[dict[str, Any]], host: str, known: str) -> Place:
    """Where, by the agent's one event. The address that SSH goes to comes first: the agent's may be behind a NAT."""
    try:
        told = next(events, {})
        addresses = (known, str(told["address"]))
        return Place(tuple(dict.fromkeys(filter(None, addresses))), int(told["port"]), int(told.get("cores") or 0))
    except AgentError as error:
        raise NoDirectWayError(error.message, host=host) from None
    except (KeyError, TypeError, ValueError):
        raise NoDirectWayError(f"the agent's answer makes no sense: {told!r}", host=host) from None


@dataclass(frozen=True, slots=True)
class Identity:
    """A key and the certificate that it signed itself, PEM."""

    key: str
    certificate: str

    @property
    def both(self) -> str:
        """The key, then the certificate."""
        return self.key + self.certificate

    @classmethod
    def make(cls) -> Identity:
        """A new one, P-256: a millisecond."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        who = secrets.token_hex(8)  # a stranger who is shown it learns nothing
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, who)])
        now = dt.datetime.now(dt.timezone.utc)
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - _VALID)
            .not_valid_after(now + _VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(private.decode(), certificate.public_bytes(serialization.Encoding.PEM).decode())


def _context(ours: Identity, theirs: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is known byte by byte; it has no name to check
    context.load_verify_locations(cadata=theirs.certificate)
    with PassedFile("hsops-identity") as passed:  # OpenSSL wants a file; on Linux the key is never on a disk
        passed.file.write(ours.both.encode())
        passed.file.flush()
        context.load_cert_chain(passed.path)
    return context
