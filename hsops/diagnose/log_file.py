"""A log file or a pipe, read once as a stream: what a diagnosis needs of it, in memory that does not grow with it.

A server at work writes a million lines of batches and answers. Its beginning and end are kept whole; between them only
lines that are not of that kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from hsops.core.errors import BadDataError
from hsops.core.events import Emit, ignore
from hsops.core.meter import Meter

BLOCK = 1 << 20
HEAD, TAIL, MIDDLE = 2 << 20, 1 << 20, 8 << 20
_EVERY = 8  # blocks between two words on how far it is
_ROUTINE = (b"Decode batch", b"Prefill batch", b'HTTP/1.1" 200', b'"GET /health', b'"GET /metrics', b"it/s]")
_OTHERWISE = {  # how files begin that are no text, and how to make text of them
    b"\x1f\x8b": ("gzip", "zcat FILE | hsops diagnose --log -; what --save wrote is read by --bundle"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat FILE | hsops diagnose --log -"),
    b"\xfd7zXZ": ("xz", "xzcat FILE | hsops diagnose --log -"),
    b"BZh": ("bzip2", "bzcat FILE | hsops diagnose --log -"),
    b"\xff\xfe": ("UTF-16", "iconv -f UTF-16 -t UTF-8 FILE | hsops diagnose --log -"),
}
_NEVER_ROUTINE = (b"rror", b"xception", b"WARN")  # ranks write over each other: trouble may share a line with a bar


@dataclass(frozen=True, slots=True)
class Digest:
    """What is kept of a log: ``data``; ``lines`` of all of it; ``left_out`` of them: without news, or too many."""

    data: bytes
    lines: int
    left_out: int


@dataclass(slots=True)
class _Middle:
    """Lines between beginning and end: those with news, as long as there is room."""

    kept: list[bytes] = field(default_factory=list)
    size: int = 0
    left_out: int = 0

    def take(self, block: bytes) -> None:
        for line in block.split(b"\n")[:-1]:
            routine = any(mark in line for mark in _ROUTINE) and not any(mark in line for mark in _NEVER_ROUTINE)
            if routine or self.size >= MIDDLE:
                self.left_out += 1
            else:
                self.kept.append(line)
                self.size += len(line) + 1


def digest(file: BinaryIO, *, size: int = 0, emit: Emit = ignore) -> Digest:
    """Read a log to its end.

    Args:
        file: open for reading; a pipe will do.
        size: its bytes, for the progress; 0 when unknown.

    Raises:
        BadDataError: it is compressed, or in another encoding.
    """
    meter, done, lines = Meter("read the log", "bytes", size), 0, 0
    head, tail, middle = bytearray(), deque[bytes](), _Middle()
    for number, block in enumerate(_whole_lines(file)):
        if not number:
            _demand_text(block)
        done, lines = done + len(block), lines + block.count(b"\n")
        if len(head) < HEAD:
            head += block
            continue
        tail.append(block)
        while len(tail) > 1 and sum(map(len, tail)) - len(tail[0]) >= TAIL:
            middle.take(tail.popleft())
        if number % _EVERY == 0:
            emit(meter.at(done))
    data = b"".join([head, *(line + b"\n" for line in middle.kept), *tail])
    return Digest(data, lines + (bool(data) and not data.endswith(b"\n")), middle.left_out)


def _demand_text(block: bytes) -> None:
    for mark, (kind, fix) in _OTHERWISE.items():
        if block.startswith(mark):
            raise BadDataError(f"the log is {kind}, not plain text", fix=fix)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Blocks that end where a line ends; the last one may not."""
    rest = b""
    while block := file.read(BLOCK):
        end = block.rfind(b"\n") + 1
        if not end and len(rest) < BLOCK:
            rest += block
            continue
        yield rest + block[:end]
        rest = block[end:]
    if rest:
        yield rest
