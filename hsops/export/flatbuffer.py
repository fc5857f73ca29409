"""Flatbuffers, as far as Arrow's messages need them: written front to back, a table before what it points to.

Format: https://flatbuffers.dev/internals/. Offsets to children count forwards from where they stand, those to a vtable
backwards; scalars lie at multiples of their size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

Scalar = tuple[str, int]
"""A struct code (``b``, ``h``, ``i``, ``q``, ``?``) and a value."""
Child = Callable[["Buffer"], int]
"""Writes itself at the end of a buffer and returns where it begins."""


class Buffer:
    """Bytes that grow."""

    def __init__(self) -> None:
        self.data = bytearray()

    def align(self, to: int, before: int = 0) -> None:
        """Fill up so that what follows ``before`` more bytes stands at a multiple of ``to``."""
        self.data += bytes(-(len(self.data) + before) % to)

    def point(self, at: int, child: Child) -> None:
        """Write a child, and at ``at`` the way to it."""
        struct.pack_into("<I", self.data, at, child(self) - at)


def finished(root: Child) -> bytes:
    """A whole flatbuffer, its length a multiple of 8."""
    buffer = Buffer()
    buffer.data += bytes(4)
    buffer.point(0, root)
    buffer.align(8)
    return bytes(buffer.data)


def table(fields: Mapping[int, Scalar | Child]) -> Child:
    """A table by slot; a slot that is not named has its default."""

    def write(buffer: Buffer) -> int:
        offsets, length = {}, 4
        for slot, field in fields.items():
            size = struct.calcsize(field[0]) if isinstance(field, tuple) else 4
            offsets[slot] = length + -length % size
            length = offsets[slot] + size
        slots = max(fields, default=-1) + 1
        vtable = struct.pack(f"<HH{slots}H", 4 + 2 * slots, length, *(offsets.get(slot, 0) for slot in range(slots)))
        buffer.align(8, before=len(vtable))
        buffer.data += vtable
        begin = len(buffer.data)
        buffer.data += struct.pack("<i", len(vtable)) + bytes(length - 4)
        for slot, field in fields.items():
            if isinstance(field, tuple):
                struct.pack_into("<" + field[0], buffer.data, begin + offsets[slot], field[1])
            else:
                buffer.point(begin + offsets[slot], field)
        return begin

    return write


def text(value: str) -> Child:
    """A string."""

    def write(buffer: Buffer) -> int:
        data = value.encode()
        buffer.align(4)
        begin = len(buffer.data)
        buffer.data += struct.pack("<I", len(data)) + data + b"\0"
        return begin

    return write


def tables(children: Sequence[Child]) -> Child:
    """A vector of tables."""

    def write(buffer: Buffer) -> int:
        buffer.align(4)
        begin = len(buffer.data)
        buffer.data += struct.pack("<I", len(children)) + bytes(4 * len(children))
        for place, child in enumerate(children):
            buffer.point(begin + 4 + 4 * place, child)
        return begin

    return write


def pairs(values: Sequence[tuple[int, int]]) -> Child:
    """A vector of structs of two 64-bit integers."""

    def write(buffer: Buffer) -> int:
        buffer.align(8, before=4)
        begin = len(buffer.data)
        buffer.data += struct.pack("<I", len(values))
        for value in values:
            buffer.data += struct.pack("<qq", *value)
        return begin

    return write
