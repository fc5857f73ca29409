"""What every host can do, over SSH or here. ``tests/integration/test_host_contract.py`` holds all of them to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from hsops.core.command import Command
from hsops.core.deadline import Deadline

FAR_S = 0.03
"""Seconds of a round trip from which on a connection's window, not the machines, bounds what comes through it."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended.

    ``exit`` is its status, or minus the signal that killed it. A shell stands between, so a status of 128 + n that the
    command itself chose reads as signal n.
    """

    exit: int
    stdout: bytes
    stderr: bytes


class Stream(AbstractContextManager["Stream"], Protocol):
    """A running command whose output is read as it comes.

    Leaving the context ends the command on the host: SIGTERM to its process group, SIGKILL 3 s later. The same happens
    when this process dies or the link does. What must stay starts a session of its own (``setsid``).
    """

    def __iter__(self) -> Iterator[bytes]:
        """Pieces of stdout as they arrive.

        Raises:
            DeadlineError: nothing came for ``idle`` seconds, or ``total`` is over.
            UnreachableError: the link died.
            RemoteError: the host's login shell did not start the command.
        """
        ...

    def finish(self) -> Completed:
        """After the last piece: the status and stderr (``stdout`` is empty)."""
        ...

    def say(self, data: bytes, deadline: Deadline) -> None:
        """More input, for a command that was started with ``talk``; the clock of ``deadline`` starts now."""
        ...

    def send(self, data: bytes) -> None:
        """The same, without a deadline and from any one thread, once the command has answered what it was given.

        Raises:
            HsopsError: the command has ended, or the link died.
        """
        ...

    @property
    def started(self) -> bool:
        """The command has begun."""
        ...

    @property
    def listens(self) -> bool:
        """As far as is known here, the command still runs and can be reached."""
        ...


class Host(Protocol):
    """A machine on which commands run without a pty and with standard input closed after ``stdin``.

    All methods raise ``UnreachableError`` or a subclass when the host cannot be reached or goes away.
    """

    @property
    def name(self) -> str:
        """The name in the inventory."""
        ...

    @property
    def via(self) -> tuple[str, ...]:
        """The exec prefix behind which every command runs; empty without one."""
        ...

    @property
    def address(self) -> str | None:
        """Where connections beside SSH may reach it: a name or address; empty behind a jump host; None: it is here."""
        ...

    @property
    def round_trip(self) -> float:
        """Seconds of the fastest way there and back so far, as the kernel saw it; 0: not known, or it is here."""
        ...

    def run(self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline()) -> Completed:
        """Run to the end. A non-zero exit is a result, not an error."""
        ...

    def stream(
        self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline(), talk: bool = False
    ) -> Stream:
        """Run and read stdout while it runs; with ``talk`` its input stays open for ``Stream.say``."""
        ...

    def put(self, data: bytes, path: str, *, mode: int = 0o600, deadline: Deadline = Deadline()) -> None:
        """Write a file whole or not at all (temporary name, fsync, rename); parent folders are made, mode 0700."""
        ...

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        """A port of this machine's 127.0.0.1 that reaches 127.0.0.1:``port`` on the host while the context is open.

        On the host itself, in front of any prefix; ``Agent.tunnel`` leads behind it.
        """
        ...

    def bulk(
        self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline(), talk: bool = False
    ) -> Stream:
        """As ``stream``, over a connection of its own made by OpenSSH's client: for gigabytes.

        The command must leave no process behind that holds its output: OpenSSH's client would wait for it.
        """
        ...

    def behind(self, prefix: tuple[str, ...]) -> Host:
        """The same way and one prefix more, after its own; with a connection of its own, closed with this one's."""
        ...

    def close(self) -> None:
        """Close the connection. Idempotent."""
        ...
