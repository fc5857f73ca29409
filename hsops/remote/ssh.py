"""A machine reached over SSH: control over one paramiko connection, bulk over OpenSSH's client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.core.errors import UnreachableError
from hsops.core.way import Way
from hsops.remote import calls
from hsops.remote.host import Completed, Stream
from hsops.remote.openssh import OpenSshStream
from hsops.remote.pulse import Pulse
from hsops.remote.shell import wrap
from hsops.remote.target import Target, resolve

if TYPE_CHECKING:  # fabric and paramiko take a third of a second to load: not for a host that is only talked with
    from paramiko import Channel

    from hsops.remote.link import Link


class SshHost:
    """Connects on first use and again after the connection died. Safe to use from several threads.

    Args:
        way: the host in the inventory.
        accept_new: store the key of a host seen for the first time.
        pulse: how a dead link is noticed, if not by what ``way`` says.
    """

    def __init__(self, way: Way, *, accept_new: bool = False, pulse: Pulse | None = None) -> None:
        self.name, self.via = way.name, way.via
        self._way, self._accept_new = way, accept_new
        self._pulse = pulse or Pulse(way.keepalive, 3 * way.keepalive)
        self._link: Link | None = None
        self._talks: list[OpenSshStream] = []
        self._behind: list[SshHost] = []
        self._lock = threading.Lock()

    @cached_property
    def target(self) -> Target:
        """Where the way leads; OpenSSH is asked once."""
        return resolve(self._way, accept_new=self._accept_new)

    @property
    def address(self) -> str:
        return "" if self.target.jump or self.target.proxy else self.target.hostname

    @property
    def round_trip(self) -> float:
        link = self._link
        return link.round_trip if link else 0.0

    def run(self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline()) -> Completed:
        return calls.run(self, command, stdin, deadline)

    def stream(
        self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline(), talk: bool = False
    ) -> Stream:
        from hsops.remote.channel import ChannelStream

        envelope = wrap(command, stdin, talk=talk, via=self.via)
        link, channel = self._session(deadline.connect)
        link.start(channel, envelope.line, deadline.connect)
        return ChannelStream(link, channel, envelope, deadline)

    def put(self, data: bytes, path: str, *, mode: int = 0o600, deadline: Deadline = Deadline()) -> None:
        calls.put(self, data, path, mode, deadline)

    @contextmanager
    def tunnel(self, port: int) -> Iterator[int]:
        from hsops.remote.tunnel import Tunnel

        connect = Deadline().connect
        self._live(connect)  # an unreachable host is told here, not to the tunnel's clients
        tunnel = Tunnel(lambda: self._live(connect).forward(port, connect))
        try:
            yield tunnel.port
        finally:
            tunnel.close()

    def bulk(
        self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline(), talk: bool = False
    ) -> Stream:
        stream = OpenSshStream(self.target, wrap(command, stdin, talk=talk, via=self.via), deadline)
        if talk:
            self._talks = [*(other for other in self._talks if other.listens), stream]
        return stream

    def behind(self, prefix: tuple[str, ...]) -> SshHost:
        way = replace(self._way, via=(*self._way.via, *prefix))
        self._behind.append(SshHost(way, accept_new=self._accept_new, pulse=self._pulse))
        return self._behind[-1]

    def close(self) -> None:
        while self._behind:
            self._behind.pop().close()
        with self._lock:
            link, self._link = self._link, None
            talks, self._talks = self._talks, []
        for talk in talks:
            talk.drop()
        if link:
            link.close()

    def abandon(self) -> None:
        """Kill what OpenSSH's client does here, from a signal's handler in a process that ends now."""
        for talk in self._talks:
            talk.abandon()

    def _session(self, connect: float) -> tuple[Link, Channel]:
        """A new channel. A connection found dead before anything was asked of it is replaced once."""
        before = self._link
        link = self._live(connect)
        try:
            return link, link.session(connect)
        except UnreachableError:
            if link is not before or link.alive:
                raise
        link = self._live(connect)
        return link, link.session(connect)

    def _live(self, connect: float) -> Link:
        from hsops.remote.link import Link

        with self._lock:
            if self._link and not self._link.alive:
                self._link.close()
                self._link = None
            if not self._link:
                self._link = Link(self.target, connect, self._pulse)
            return self._link
