"""This machine as a host: the same promises as over SSH, through child processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.remote import calls
from hsops.remote.child import ChildStream
from hsops.remote.host import Completed, Stream
from hsops.remote.shell import wrap


class LocalHost:
    """``ssh: local``.

    Args:
        name: in the inventory.
        via: its exec prefix.
    """

    def __init__(self, name: str, via: tuple[str, ...] = ()) -> None:
        self.name, self.via, self.address, self.round_trip = name, via, None, 0.0
        self._talks: list[ChildStream] = []
        self._behind: list[LocalHost] = []

    def run(self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline()) -> Completed:
        return calls.run(self, command, stdin, deadline)

    def stream(
        self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline(), talk: bool = False
    ) -> Stream:
        envelope = wrap(command, stdin, talk=talk, via=self.via)
        # behind a prefix a shell of our own says what is not found, as the login shell of a host does
        argv = ("/bin/sh", "-c", envelope.line) if self.via else envelope.argv
        stream = ChildStream(self.name, argv, envelope, deadline)
        if talk:
            self._talks = [*(other for other in self._talks if other.listens), stream]
        return stream

    bulk = stream

    def put(self, data: bytes, path: str, *, mode: int = 0o600, deadline: Deadline = Deadline()) -> None:
        calls.put(self, data, path, mode, deadline)

    @contextmanager
    def tunnel(self, port: int) -> Iterator[int]:
        yield port

    def behind(self, prefix: tuple[str, ...]) -> LocalHost:
        self._behind.append(LocalHost(self.name, (*self.via, *prefix)))
        return self._behind[-1]

    def close(self) -> None:
        """End the commands that are still talked with."""
        while self._behind:
            self._behind.pop().close()
        while self._talks:
            self._talks.pop().__exit__()
