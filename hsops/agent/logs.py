"""Reading a server's log, byte for byte, while it grows, is emptied, moved aside or begun anew."""

import contextlib
import glob
import os
import re
import time
from typing import Any, BinaryIO

from hsops.agent import protocol
from hsops.agent.rundir import RunDir, find_run

_CHUNK = 1 << 16
_BEFORE = 64  # bytes by which a place in a log is known again
_ATTEMPT = re.compile(r"server\.\d+\.log\Z")


class Tail:
    """What a log has grown by since the last look.

    A place in it is a file (its inode: it may be moved aside), an offset, and the bytes before that: a log that was
    emptied and has grown beyond the offset since is told by them.

    Args:
        path: of the log that is written now.
        place: ``{"file", "offset", "before"}`` as the caller knows it; empty: the beginning of ``path``.
        onward: when a moved file is read to its end, go on with its successor.
    """

    def __init__(self, path: str, place: "dict[str, Any] | None" = None, *, onward: bool = True) -> None:
        place = place or {}
        self.path, self.file, self.offset = path, int(place.get("file", 0)), int(place.get("offset", 0))
        self._before = str(place.get("before", "")).encode("utf-8", "surrogateescape")
        self._onward = onward

    def pour(self, *, limit: int = 64) -> bool:
        """Emit ``log`` {file, offset, data} in pieces of at most 64 KiB and ``limit``; True when it was something.

        Bytes that are not UTF-8, and characters cut at an end, become lone surrogates: ``encode("utf-8",
        "surrogateescape")`` gives back exactly the bytes. ``log-cut`` {why, file} comes where the bytes do not go on
        from those before: ``truncated``, ``rotated``, ``restarted``, or ``removed``.
        """
        said = False
        with contextlib.suppress(FileNotFoundError), self._open() as file:
            self._find_cut(file)
            file.seek(self.offset)
            for _ in range(limit):
                if not (data := file.read(_CHUNK)):
                    break
                text = data.decode("utf-8", "surrogateescape")
                protocol.emit("log", file=self.file, offset=self.offset, data=text)
                self.offset += len(data)
                self._before = (self._before + data)[-_BEFORE:]
                said = True
        return said or (self._onward and self._step())

    def _open(self) -> BinaryIO:
        """The file of this place, under whatever name; the log itself when that is gone."""
        for path in self._files() if self.file and _inode(self.path) != self.file else ():
            file = open(path, "rb")  # noqa: SIM115 - the caller closes it
            if os.fstat(file.fileno()).st_ino == self.file:
                return file
            file.close()
        file = open(self.path, "rb")  # noqa: SIM115
        found = os.fstat(file.fileno()).st_ino
        if self.file not in (0, found):
            self._cut("removed", found)
        self.file = found
        return file

    def _find_cut(self, file: BinaryIO) -> None:
        size = os.fstat(file.fileno()).st_size
        if size < self.offset or (
            size > self.offset
            and os.pread(file.fileno(), len(self._before), self.offset - len(self._before)) != self._before
        ):
            self._cut("truncated", self.file)

    def _cut(self, why: str, file: int) -> None:
        self.file, self.offset, self._before = file, 0, b""
        protocol.emit("log-cut", why=why, file=file)

    def _step(self) -> bool:
        """From a file that was moved aside to the one begun after it, once there is something in that."""
        if self.file in (0, _inode(self.path)):
            return False
        files = self._files()
        at = next((i for i, path in enumerate(files) if _inode(path) == self.file), -1)
        if at < 0 or at + 1 == len(files) or not os.path.getsize(files[at + 1]):
            return False
        self._cut("restarted" if _ATTEMPT.search(files[at]) else "rotated", _inode(files[at + 1]))
        return True

    def _files(self) -> "list[str]":
        """The log and those that were moved aside in its folder, the oldest first."""
        found = {}
        for path in glob.glob(glob.escape(self.path.removesuffix(".log")) + ".*"):
            with contextlib.suppress(OSError):
                found[path] = (path == self.path, os.stat(path).st_mtime_ns)
        return sorted(found, key=lambda path: found[path])


def read(params: "dict[str, Any]") -> "dict[str, Any]":
    """Stream a run's log.

    ``params``: run; attempt (None: the last); place, where the caller is (``Tail``), or lines, only the last so many
    (None: all); follow, until the run has ended. Events: ``log-at`` {file, offset} first when there was no place, and
    those of ``Tail.pour``. Result: ``{"offset"}``, where it ended.
    """
    run, follow = find_run(params), bool(params.get("follow"))
    path = _log_of(run, params.get("attempt"))
    lines, place = params.get("lines"), params.get("place")
    if not place:
        place = {"file": _inode(path), "offset": 0 if lines is None else _start_of_last(path, int(lines))}
        protocol.emit("log-at", **place)  # who is cut off before the first byte comes back to here
    tail = Tail(run.log, place, onward=follow)
    beat = time.monotonic()
    while True:
        ended = not follow or not run.running()
        said = tail.pour()
        if ended and not said:
            return {"offset": tail.offset}
        if not said:
            time.sleep(0.1)
        if time.monotonic() - beat > 4:
            beat = time.monotonic()
            protocol.emit("beat")


def _log_of(run: RunDir, attempt: "int | None") -> str:
    """The log of an attempt. Raises Refusal: ``no-such-attempt``."""
    if attempt in (None, run.attempt()):
        return run.log
    path = run.log_of(attempt or 0)
    if not os.path.exists(path):
        message = f"run {run.id} has no log of attempt {attempt}; the last attempt is {run.attempt()}"
        raise protocol.Refusal("no-such-attempt", message)
    return path


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _start_of_last(path: str, lines: int) -> int:
    """The offset at which the last ``lines`` lines begin; an unfinished last line counts as one."""
    try:
        with open(path, "rb") as file:
            at = file.seek(0, os.SEEK_END)
            if lines <= 0 or at == 0:
                return at
            file.seek(at - 1)
            missing = lines + (file.read(1) == b"\n")
            while at > 0:
                size = min(_CHUNK, at)
                at -= size
                file.seek(at)
                data = file.read(size)
                found = data.count(b"\n")
                if found >= missing:
                    place = len(data)
                    for _ in range(missing):
                        place = data.rindex(b"\n", 0, place)
                    return at + place + 1
                missing -= found
            return 0
    except FileNotFoundError:
        return 0
