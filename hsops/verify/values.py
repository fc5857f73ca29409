"""The numbers of a dump: NaN, Inf and rows of zeros. By bit patterns, because numpy has no bf16."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hsops.verify.container import Tensor

BLOCK = 8 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """How a float is stored: its unsigned twin, the mask that drops the sign, and the smallest pattern that is no
    finite number (all ones in the exponent)."""

    bits: str
    magnitude: int
    infinite: int


LAYOUTS = {
    "F32": Layout("<u4", 0x7FFFFFFF, 0x7F800000),
    "BF16": Layout("<u2", 0x7FFF, 0x7F80),
    "F16": Layout("<u2", 0x7FFF, 0x7C00),
}


@dataclass(frozen=True, slots=True)
class Oddity:
    """What is wrong with the values of one kind.

    Args:
        kind: ``nan``, ``inf`` or ``zero`` (a whole row of zeros: never written, or lost).
        count: rows [token, slot] that have it.
        token, slot: the first of them.
    """

    kind: str
    count: int
    token: int
    slot: int


def oddities(path: Path, states: Tensor) -> tuple[Oddity, ...]:
    """Look at every value of states [T, slots, H] or [T, H]; one oddity a kind, none for a good dump."""
    layout = LAYOUTS[states.dtype]
    found: dict[str, Oddity] = {}
    token = 0
    for block in _blocks(path, states, layout):
        magnitude = block & block.dtype.type(layout.magnitude)
        top = np.asarray(magnitude.max(axis=-1))
        _note(found, "zero", np.asarray(top == 0), token)
        if np.any(top >= layout.infinite):
            _note(found, "nan", np.any(magnitude > layout.infinite, axis=-1), token)
            _note(found, "inf", np.any(magnitude == layout.infinite, axis=-1), token)
        token += len(block)
    return tuple(found.values())


def read_tokens(path: Path, token_ids: Tensor) -> bytes:
    """The token ids as stored: little-endian int64."""
    with path.open("rb") as file:
        file.seek(token_ids.start)
        return file.read(8 * token_ids.count)


def _blocks(path: Path, states: Tensor, layout: Layout) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    tokens, *between, hidden = states.shape
    slots = math.prod(between)
    dtype = np.dtype(layout.bits)
    rows = max(1, BLOCK // (slots * hidden * dtype.itemsize))
    with path.open("rb", buffering=0) as file:
        file.seek(states.start)
        for start in range(0, tokens, rows):
            count = min(rows, tokens - start)
            yield np.fromfile(file, dtype, count * slots * hidden).reshape(count, slots, hidden)


def _note(found: dict[str, Oddity], kind: str, rows: npt.NDArray[np.bool_], token: int) -> None:
    places = np.argwhere(rows)
    if not len(places):
        return
    held = found.get(kind)
    first = (held.token, held.slot) if held else (token + int(places[0][0]), int(places[0][1]))
    found[kind] = Oddity(kind, len(places) + (held.count if held else 0), *first)
