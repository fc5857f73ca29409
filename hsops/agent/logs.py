"""Reading a server's log, byte for byte, while it grows."""

import os
import time
from collections.abc import Iterator
from typing import Any

from hsops.agent import protocol
from hsops.agent.rundir import find_run

_CHUNK = 1 << 16


class Tail:
    """What a file has grown by since the last look."""

    def __init__(self, path: str, offset: int) -> None:
        self.path, self.offset = path, offset

    def read(self, *, limit: int = 64) -> "Iterator[tuple[int, str]]":
        """Pieces of at most 64 KiB, with the offset of each; at most ``limit`` of them.

        Bytes that are not UTF-8, and characters cut at an end, become lone surrogates: ``encode("utf-8",
        "surrogateescape")`` gives back exactly the bytes.
        """
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                for _ in range(limit):
                    data = file.read(_CHUNK)
                    if not data:
                        return
                    yield self.offset, data.decode("utf-8", "surrogateescape")
                    self.offset += len(data)
        except FileNotFoundError:
            return


def read(params: "dict[str, Any]") -> "dict[str, Any]":
    """Stream a run's log. ``params``: run; lines, only the last so many (None: all); follow, until the run has ended.

    Events: ``log`` {offset, data}. Result: ``{"offset"}``, where it ended.
    """
    run = find_run(params)
    lines = params.get("lines")
    tail = Tail(run.log, _start_of_last(run.log, int(lines)) if lines is not None else 0)
    beat = time.monotonic()
    while True:
        ended = not params.get("follow") or not run.running()
        said = False
        for offset, data in tail.read():
            protocol.emit("log", offset=offset, data=data)
            said = True
        if ended and not said:
            return {"offset": tail.offset}
        if not said:
            time.sleep(0.1)
        if time.monotonic() - beat > 4:
            beat = time.monotonic()
            protocol.emit("beat")


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
