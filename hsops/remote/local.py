"""This machine as a host: the same promises as over SSH, through child processes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.core.errors import DeadlineError
from hsops.remote.host import Completed, Stream


class LocalHost:
    """``ssh: local``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline()) -> Completed:
        with self.stream(command, stdin=stdin, deadline=deadline) as stream:
            stdout = b"".join(stream)
            done = stream.finish()
        return Completed(done.exit, stdout, done.stderr)

    def stream(self, command: Command, *, stdin: bytes = b"", deadline: Deadline = Deadline()) -> Stream:
        return ChildStream(self.name, ["/bin/sh", "-c", command.shell()], stdin, deadline)

    bulk = stream

    def put(self, data: bytes, path: str, *, mode: int = 0o600, deadline: Deadline = Deadline()) -> None:  # noqa: ARG002
        target = Path(path).expanduser()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(target)

    @contextmanager
    def tunnel(self, port: int) -> Iterator[int]:
        yield port

    def close(self) -> None:
        """Nothing is held."""


class ChildStream:
    """A child process read as it writes; its whole process group ends with the context."""

    def __init__(self, host: str, argv: list[str], stdin: bytes, deadline: Deadline) -> None:
        self._host, self._deadline, self._started = host, deadline, time.monotonic()
        self._child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._stdin, self._stderr = memoryview(stdin), bytearray()
        self._selector = selectors.DefaultSelector()
        assert self._child.stdin and self._child.stdout and self._child.stderr
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            os.set_blocking(pipe.fileno(), False)
        self._selector.register(self._child.stdin, selectors.EVENT_WRITE)
        self._selector.register(self._child.stdout, selectors.EVENT_READ)
        self._selector.register(self._child.stderr, selectors.EVENT_READ)

    def __enter__(self) -> ChildStream:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
        self._selector.close()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._child.wait()

    def __iter__(self) -> Iterator[bytes]:
        out, heard = self._child.stdout, time.monotonic()
        while self._selector.get_map():
            ready = self._selector.select(self._patience(heard))
            if not ready:
                self._too_late(heard)
            for key, _ in ready:
                if key.fileobj is self._child.stdin:
                    self._feed()
                    continue
                data = os.read(key.fd, 1 << 16)
                heard = time.monotonic()
                if not data:
                    self._selector.unregister(key.fileobj)
                elif key.fileobj is out:
                    yield data
                else:
                    self._stderr += data

    def finish(self) -> Completed:
        for _ in self:
            pass
        return Completed(self._child.wait(), b"", bytes(self._stderr))

    def _feed(self) -> None:
        assert self._child.stdin
        try:
            if self._stdin:
                self._stdin = self._stdin[os.write(self._child.stdin.fileno(), self._stdin[: 1 << 16]) :]
        except BrokenPipeError:
            self._stdin = memoryview(b"")
        if not self._stdin:
            self._selector.unregister(self._child.stdin)
            self._child.stdin.close()

    def _patience(self, heard: float) -> float:
        idle = heard + self._deadline.idle - time.monotonic()
        total = self._started + self._deadline.total - time.monotonic() if self._deadline.total else idle
        return max(0.0, min(idle, total))

    def _too_late(self, heard: float) -> None:
        now = time.monotonic()
        if self._deadline.total and now - self._started >= self._deadline.total:
            raise DeadlineError(f"the command was not done after {self._deadline.total:g} s", host=self._host)
        if now - heard >= self._deadline.idle:
            raise DeadlineError(f"no output for {self._deadline.idle:g} s", host=self._host)
