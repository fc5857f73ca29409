"""One live SSH connection: opened within a deadline, watched, closed. Fabric's one door."""

from __future__ import annotations

import logging
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import fabric
import paramiko

from hsops.core.errors import DeadlineError, UnreachableError
from hsops.remote.errors import TRY, translate
from hsops.remote.host_key import HostKeyPolicy, prefer_known
from hsops.remote.keys import Keys
from hsops.remote.patience import within
from hsops.remote.proxy import Proxy
from hsops.remote.pulse import Pulse
from hsops.remote.target import Target

T = TypeVar("T")
_MIN_RTT = 148  # where Linux' struct tcp_info has its tcpi_min_rtt, microseconds
_REFUSED = 2.0  # seconds
logging.getLogger("paramiko").addHandler(logging.NullHandler())  # else its threads print tracebacks on stderr


class Link:
    """A connection to one host.

    Args:
        target: where.
        connect: seconds for everything: name, proxy, TCP, key exchange, authentication.
        pulse: how a dead host is noticed.

    Raises:
        UnreachableError: or a subclass that says more.
    """

    def __init__(self, target: Target, connect: float, pulse: Pulse = Pulse()) -> None:
        self.target, self._pulse = target, pulse
        self._proxy: Proxy | None = None
        self._sock: socket.socket | None = None
        self._connection: fabric.Connection = None
        self._closed = threading.Event()
        self._answered = time.monotonic()
        try:
            within(connect, lambda: self._open(connect), self.close)
        except TimeoutError:
            self.close()
            what = "finish the SSH handshake" if self._sock else "answer"
            raise DeadlineError(
                f"{target.hostname}:{target.port} did not {what} within {connect:g} s", host=target.name, fix=TRY
            ) from None
        except Exception as error:  # noqa: BLE001 - translate() raises what it does not know
            failure = self._proxy.failure() if self._proxy else None
            self.close()
            raise failure or translate(error, target) from None
        except BaseException:
            self.close()
            raise
        for work in (self._ask, self._watch):
            threading.Thread(target=work, name=f"hsops{work.__name__}", daemon=True).start()

    @property
    def transport(self) -> paramiko.Transport:
        """paramiko's view of it."""
        transport: paramiko.Transport = self._connection.transport
        return transport

    @property
    def alive(self) -> bool:
        """Not closed, and not known to be dead."""
        return not self._closed.is_set() and bool(self.transport.is_active())

    @property
    def round_trip(self) -> float:
        """Seconds, the least that the kernel saw; 0 where it cannot tell: another system, a proxy."""
        if self._sock and sys.platform == "linux":
            with suppress(OSError, struct.error):
                told = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
                return float(struct.unpack_from("I", told, _MIN_RTT)[0]) / 1e6
        return 0.0

    def session(self, connect: float) -> paramiko.Channel:
        """A new session channel."""
        return self._in_time(connect, self._create_session)

    def start(self, channel: paramiko.Channel, line: str, connect: float) -> None:
        """Start a command line in a session."""
        self._in_time(connect, lambda: channel.exec_command(line))

    def forward(self, port: int, connect: float) -> paramiko.Channel:
        """A channel to 127.0.0.1:``port`` on the host."""
        here, there = ("127.0.0.1", 0), ("127.0.0.1", port)
        return self._in_time(connect, lambda: self.transport.open_channel("direct-tcpip", there, here, timeout=connect))

    def lost(self) -> UnreachableError:
        """The error for work that was under way when the connection died."""
        return UnreachableError(
            f"the connection to {self.target.hostname} was lost",
            host=self.target.name,
            why="the host or the network went away; what ran there in the foreground is ended by the host",
            fix="run the command again: it continues",
        )

    def close(self) -> None:
        """Close it, from any thread. Idempotent."""
        self._closed.set()
        with suppress(Exception):  # paramiko's own clean-up of a broken connection
            if self._connection is not None:
                self._connection.client.close()
        if self._sock:
            self._sock.close()
        if self._proxy:
            self._proxy.close()

    def _open(self, connect: float) -> None:
        target = self.target
        if target.jump or target.proxy:
            self._proxy = Proxy(target, connect)
            self._sock = self._proxy.sock
        else:
            self._sock = _dial(target.hostname, target.port, connect)
        self._connection = fabric.Connection(
            host=target.hostname,
            user=target.user,
            port=target.port,
            forward_agent=False,
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),  # OpenSSH has resolved everything
            connect_kwargs={
                "sock": self._sock,
                "transport_factory": self._transport,
                "auth_strategy": Keys(target),
                "banner_timeout": connect + 1,
                "auth_timeout": connect + 1,
                "channel_timeout": connect,
            },
        )
        self._connection.client.set_missing_host_key_policy(HostKeyPolicy(target))
        self._connection.open()
        if self._closed.is_set():  # too late: nobody waits any more
            self.close()
        elif not self.transport.is_authenticated():
            raise paramiko.ssh_exception.PartialAuthentication([])

    def _transport(self, sock: socket.socket, **options: Any) -> paramiko.Transport:
        transport = paramiko.Transport(sock, **options)
        prefer_known(transport, self.target)
        return transport

    def _create_session(self) -> paramiko.Channel:
        """sshd counts a session for a moment after its end, so a refusal is believed only after a while."""
        until = time.monotonic() + _REFUSED
        while True:
            try:
                channel: paramiko.Channel = self._connection.create_session()
            except paramiko.ChannelException:  # noqa: PERF203 - a retry is a loop around a try
                if time.monotonic() > until:
                    raise
                self._closed.wait(0.05)
            else:
                return channel

    def _in_time(self, connect: float, work: Callable[[], T]) -> T:
        try:
            return within(connect, work, lambda: None)
        except TimeoutError:
            text = f"{self.target.hostname} did not open a session within {connect:g} s"
            raise DeadlineError(text, host=self.target.name) from None
        except Exception as error:  # noqa: BLE001 - translate() raises what it does not know
            if not self.alive:
                raise self.lost() from None
            raise translate(error, self.target) from None

    def _ask(self) -> None:
        """Keepalive with an answer: paramiko's own asks for none and so never notices a dead host."""
        with suppress(Exception):  # the link is closing
            while self.alive:
                self.transport.global_request("keepalive@openssh.com", wait=True)
                self._answered = time.monotonic()
                self._closed.wait(self._pulse.every)

    def _watch(self) -> None:
        """Close the link when the host has been silent for too long; all that waits on it then wakes."""
        looked = time.monotonic()
        while not self._closed.wait(min(1.0, self._pulse.every)) and self.transport.is_active():
            now = time.monotonic()
            if now - looked > self._pulse.lost_after:  # we were stopped (Ctrl-Z), not the host
                self._answered = now
            looked = now
            if now - self._answered > self._pulse.every + self._pulse.lost_after:
                break
        self.close()


def _dial(hostname: str, port: int, connect: float) -> socket.socket:
    """A TCP connection to the first address that answers; each gets its share of the time."""
    addresses = socket.getaddrinfo(hostname, port, type=socket.SOCK_STREAM)
    failure: OSError = TimeoutError()
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(connect / len(addresses))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure
