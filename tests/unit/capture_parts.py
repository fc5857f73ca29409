"""What the tests of the writer and of the capture around it share."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from hsops.core.dumps import Sample, parse_sample, token_bytes
from hsops.payload.hsops_hs_dump.blocks import Block
from hsops.payload.hsops_hs_dump.manifest import MANIFEST
from hsops.payload.hsops_hs_dump.rows import Piece, Ticket, place
from hsops.payload.hsops_hs_dump.settings import Settings
from hsops.payload.hsops_hs_dump.writer import Writer

HIDDEN = 4


class InMemory:
    """A pass whose rows are in host memory already: a row's elements are its token id, after the norm negative."""

    dtype, item, hidden = "F32", 4, HIDDEN

    def __init__(self, ids: list[int], slots: int, *, last: bool = False, chunk: int = 1000, broken: str = "") -> None:
        self.last = last
        self._ids, self._slots, self._chunk, self._broken = ids, slots, chunk, broken

    def token_bytes(self) -> bytes:
        return token_bytes(self._ids)

    def blocks(self, tick: Callable[[], None]) -> Generator[Block, None, None]:
        if self._broken:
            raise RuntimeError(self._broken)
        for first in range(0, len(self._ids), self._chunk):
            part, read = self._ids[first : first + self._chunk], threading.Event()
            values = [float(i) for i in part for _ in range(self._slots * HIDDEN)]
            data = memoryview(struct.pack(f"<{len(values)}f", *values))
            lasts = [-float(i) for i in part for _ in range(HIDDEN)]
            more = [memoryview(struct.pack(f"<{len(lasts)}f", *lasts))] if self.last else []
            yield Block(first, len(part), [data, *more], freed=read.set)
            while not read.wait(0.5):
                tick()


def settings_for(folder: Path, **changes: Any) -> Settings:
    values = {"identity": "abc", "boundaries": (1, 3), "final": "pre-norm", "dump_dir": str(folder), "run": "r"}
    return Settings(**{**values, "check_ranks": False, **changes})


def new_writer(folder: Path, *, final: str = "pre-norm", **options: Any) -> Writer:
    return Writer(
        str(folder), settings_for(folder, final=final), {"sglang": "0.5.9", "strategy": "prepare-attn"}, **options
    )


def manifest(folder: Path) -> list[Sample]:
    return [parse_sample(line) for line in (folder / MANIFEST).read_text().splitlines()]


def whole_pass(ids: dict[str, list[int]]) -> tuple[list[int], list[Piece]]:
    tickets = [Ticket(name, len(tokens)) for name, tokens in ids.items()]
    pieces, _ = place(tickets, [t.total for t in tickets], [0] * len(tickets))
    return [i for tokens in ids.values() for i in tokens], pieces
