"""A command on the host, read as it writes, through a channel of the control connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import paramiko

from hsops.core.deadline import Deadline
from hsops.core.errors import DeadlineError
from hsops.remote.child import LINGER, PIECE, STDERR_KEPT
from hsops.remote.host import Completed
from hsops.remote.link import Link
from hsops.remote.patience import Patience
from hsops.remote.shell import GRACE, Envelope, Prologue, ended, exit_status
from hsops.remote.started import killed_early, late, not_started

_SLICE = 0.25
_NO_STATUS = -1
_KILLED = -9


class ChannelStream:
    """Meets ``hsops.remote.host.Stream``.

    Both outputs are read all the time and input is written beside them: a channel whose window (2 MiB) is full in one
    direction stops in all.

    Args:
        link: the connection.
        channel: where the command has just been started.
        envelope: what was started. The channel stays open for writing: its end means that we left.
        deadline: idle and total.
    """

    def __init__(self, link: Link, channel: paramiko.Channel, envelope: Envelope, deadline: Deadline) -> None:
        self._link, self._channel = link, channel
        self._host, self._mark, self._via = link.target.name, envelope.mark, envelope.via
        self._patience, self._prologue = Patience(self._host, deadline), Prologue(envelope.mark)
        self._stderr, self._ended = bytearray(), 0.0
        channel.settimeout(_SLICE)
        self._drainer = threading.Thread(target=self._drain_stderr, name="hsops-stderr", daemon=True)
        self._drainer.start()
        self._feeder: threading.Thread | None = None
        if envelope.stdin:
            self._feed(envelope.stdin)

    def __enter__(self) -> ChannelStream:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()  # the command's script sees the end of its input and ends the command
            until = time.monotonic() + GRACE + 1
            while not self._channel.exit_status_ready() and time.monotonic() < until:
                with suppress(TimeoutError):
                    if not self._channel.recv(PIECE):
                        self._channel.status_event.wait(_SLICE)
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()

    def __iter__(self) -> Iterator[bytes]:
        while True:
            try:
                data = self._channel.recv(PIECE)
            except TimeoutError:
                self._check()
                if self._left_behind():
                    return
                continue
            if not data:
                break
            self._patience.heard()
            self._check()  # of a command that never falls silent
            if data := self._prologue.strip(data):
                yield data
        if not self._channel.eof_received:
            raise self._link.lost()
        if not self._prologue.over:
            self._drainer.join(LINGER)
            if self._channel.status_event.wait(LINGER) and self._channel.exit_status == _NO_STATUS:
                raise killed_early(self._host)
            raise not_started(self._host, self._prologue.noise, self._stderr, self._via)

    def finish(self) -> Completed:
        for _ in self:
            pass
        self._drainer.join(0 if self._ended else LINGER)
        if not self._channel.status_event.wait(LINGER):
            raise self._link.lost()
        code = self._channel.exit_status
        return Completed(_KILLED if code == _NO_STATUS else exit_status(code), b"", ended(self._stderr, self._mark)[0])

    def say(self, data: bytes, deadline: Deadline) -> None:
        self._patience = Patience(self._host, deadline)
        self._feed(data)

    @property
    def started(self) -> bool:
        return self._prologue.over

    @property
    def listens(self) -> bool:
        return self._link.alive and not (self._channel.closed or self._channel.exit_status_ready())

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                with suppress(TimeoutError):
                    rest = rest[self._channel.send(bytes(rest[: 1 << 15])) :]
        except (OSError, EOFError, paramiko.SSHException):
            raise self._link.lost() from None

    def _check(self) -> None:
        try:
            self._patience.check()
        except DeadlineError as error:
            raise late(error, self._via, started=self._prologue.over) from None

    def _left_behind(self) -> bool:
        """The command has ended; a process it left holds its output and has been silent for a while."""
        if not self._channel.exit_status_ready():
            return False
        self._ended = self._ended or time.monotonic()
        return time.monotonic() - self._ended > LINGER

    def _drain_stderr(self) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            while True:
                with suppress(TimeoutError):
                    data = self._channel.recv_stderr(PIECE)
                    if not data:
                        return
                    self._patience.heard()
                    self._stderr += data
                    del self._stderr[:-STDERR_KEPT]

    def _feed(self, data: bytes) -> None:
        """Send it beside the reading, after what is being sent already."""

        def feed(before: threading.Thread | None = self._feeder) -> None:
            if before:
                before.join()
            rest = memoryview(data)
            with suppress(OSError, EOFError, paramiko.SSHException):  # the command or we ended it early
                while rest and not self._channel.closed:
                    with suppress(TimeoutError):
                        rest = rest[self._channel.send(bytes(rest[: 1 << 15])) :]

        self._feeder = threading.Thread(target=feed, name="hsops-stdin", daemon=True)
        self._feeder.start()
