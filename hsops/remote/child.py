"""A child process read as it writes: a command here, or OpenSSH's client with a command elsewhere."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

from hsops.core.deadline import Deadline
from hsops.core.errors import DeadlineError, HsopsError, RemoteError
from hsops.remote.host import Completed
from hsops.remote.patience import Patience
from hsops.remote.shell import GRACE, Envelope, Prologue, ended, exit_status
from hsops.remote.started import killed_here, late, not_started

PIECE = 1 << 18
LINGER = 5.0
"""Seconds that output may still come after the child's end, from processes that it left behind."""
_SLICE = 0.25
STDERR_KEPT = 8 << 20
_F_SETPIPE_SZ = 1031  # Linux; Python 3.10 has it in fcntl, macOS has none


class ChildStream:
    """Meets ``hsops.remote.host.Stream``.

    Args:
        host: the host's name in the inventory.
        argv: the child; it must run ``envelope``. Its input stays open until the context is left.
        envelope: the command.
        deadline: idle and total; the child sees to its connection itself.
    """

    def __init__(self, host: str, argv: Sequence[str], envelope: Envelope, deadline: Deadline) -> None:
        self.host, self._argv, self._mark, self._via = host, argv, envelope.mark, envelope.via
        self._patience, self._prologue = Patience(host, deadline), Prologue(envelope.mark)
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self._stdin, self._stderr = memoryview(envelope.stdin), bytearray()
        self._ended: float | None = None
        self._turn, self._left = threading.Lock(), False  # it may be closed by who waits while another reads
        self._selector = selectors.DefaultSelector()
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._out, self._in = self._child.stdout, self._child.stdin
        for pipe, event in ((self._out, 1), (self._child.stderr, 1), (self._in, 2 if envelope.stdin else 0)):
            os.set_blocking(pipe.fileno(), False)
            _widen(pipe.fileno())
            if event:
                self._selector.register(pipe, event)

    def __enter__(self) -> ChildStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        with self._turn:
            if not self._in.closed:
                self._leave()

    def _leave(self) -> None:
        self._stop_feeding()
        self._in.close()  # the command's script sees the end of its input and ends the command
        try:
            self._drain(time.monotonic() + GRACE + 1)
        finally:
            if self._child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            self._selector.close()
            for pipe in (self._child.stdout, self._child.stderr):
                if pipe:
                    pipe.close()

    def drop(self) -> None:
        """End the child at once, without waiting for what it says: a client that leaves its connection."""
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGTERM)
        self.__exit__()

    def abandon(self) -> None:
        """Kill the child, without a lock or its last words: for a signal's handler in a process that ends now."""
        if self._child.returncode is None:  # else its number may be another's
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)
                os.waitpid(self._child.pid, 0)

    def __iter__(self) -> Iterator[bytes]:
        while (data := self._more()) is not None:
            if data:
                yield data
        if failure := self.failure(self._child.wait()):
            raise failure

    def _more(self) -> bytes | None:
        """What came within a moment, maybe nothing; None at the end."""
        with self._turn:
            if self._left:
                raise RemoteError("the connection was closed here", host=self.host)
            if not self._reading():
                return None
            ready = self._selector.select(self._patience.left(_SLICE))
            if not ready:
                self._check()
                if self._left_behind():
                    return None
            return b"".join(self._prologue.strip(self._step(key)) for key, _ in ready)

    def finish(self) -> Completed:
        for _ in self:
            pass
        return Completed(exit_status(self._child.wait()), b"", self.stderr)

    def say(self, data: bytes, deadline: Deadline) -> None:
        self._patience, self._stdin = Patience(self.host, deadline), memoryview(bytes(self._stdin) + data)
        if self._in not in self._selector.get_map():
            self._selector.register(self._in, selectors.EVENT_WRITE)

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            with selectors.DefaultSelector() as writable:
                writable.register(self._in, selectors.EVENT_WRITE)
                while rest:
                    if writable.select(_SLICE):
                        rest = rest[os.write(self._in.fileno(), rest[:PIECE]) :]
        except (OSError, ValueError):
            raise RemoteError("the command has ended", host=self.host) from None

    def _check(self) -> None:
        try:
            self._patience.check()
        except DeadlineError as error:
            raise late(error, self._via, started=self.started) from None

    @property
    def listens(self) -> bool:
        return self._child.poll() is None

    @property
    def started(self) -> bool:
        """The command has begun."""
        return self._prologue.over

    @property
    def ended(self) -> bool:
        """The command has ended, and the child's status is its own."""
        return ended(self._stderr, self._mark)[1]

    @property
    def stderr(self) -> bytes:
        """What the command (before it began: the child) wrote there so far."""
        return ended(self._stderr, self._mark)[0]

    def failure(self, code: int) -> HsopsError | None:
        """Why a child that ended with ``code`` did not do its part; None when it did."""
        if self.started:
            return None
        if code < 0:
            return killed_here(self.host, self._argv[0], -code)
        return not_started(self.host, self._prologue.noise, self.stderr, self._via)

    def _reading(self) -> bool:
        return any(key.events & selectors.EVENT_READ for key in self._selector.get_map().values())

    def _step(self, key: selectors.SelectorKey) -> bytes:
        """Feed the child or read from it; returns new bytes of its output."""
        if key.fileobj is self._in:
            self._feed()
            return b""
        data = os.read(key.fd, PIECE)
        self._patience.heard()
        if not data:
            self._selector.unregister(key.fileobj)
        if key.fileobj is self._out:
            return data
        self._stderr += data
        del self._stderr[:-STDERR_KEPT]
        return b""

    def _feed(self) -> None:
        try:
            self._stdin = self._stdin[os.write(self._in.fileno(), self._stdin[:PIECE]) :]
        except BrokenPipeError:
            self._stdin = memoryview(b"")
        if not self._stdin:
            self._stop_feeding()

    def _stop_feeding(self) -> None:
        if self._in in self._selector.get_map():
            self._selector.unregister(self._in)

    def _left_behind(self) -> bool:
        """The child is gone; a process it left holds its output and has been silent for a while."""
        if self._child.poll() is None:
            return False
        self._ended = self._ended or time.monotonic()
        return time.monotonic() - self._ended > LINGER

    def _drain(self, until: float) -> None:
        """Read and drop output until the child has ended or time is up: a full pipe would keep it from ending."""
        while self._child.poll() is None and time.monotonic() < until:
            for key, _ in self._selector.select(0.02):
                self._step(key)
            if not self._reading():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(max(0.0, until - time.monotonic()))


def _widen(descriptor: int) -> None:
    """A pipe of 1 MiB instead of 64 KiB: fewer wake-ups for bulk data."""
    with contextlib.suppress(OSError, ImportError):
        import fcntl

        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, 1 << 20)
