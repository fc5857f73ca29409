"""The numbers of a dump: NaN, Inf, rows of zeros, and norms. By bit patterns, because numpy has no bf16."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hsops.core.container import Tensor

BLOCK = 8 << 20
CACHED = 512 << 10  # bytes of a scratch array that stays in a core's cache


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


@dataclass(frozen=True, slots=True)
class Values:
    """What was seen in states [T, slots, H] or [T, H] (one slot).

    Args:
        oddities: one a kind, none for a good dump.
        norms: L2 norm of every row, float32 [T, slots]; where the row has NaN or Inf, that.
    """

    oddities: tuple[Oddity, ...]
    norms: npt.NDArray[np.float32]


def look(path: Path, states: Tensor) -> Values:
    """Look at every value of a tensor once.

    A row's sum of squares tells nearly all: it is finite and not zero for a good row. Only where it is not does
    anything look at single bits, as the square of a large finite number overflows and that of a tiny one vanishes.
    """
    layout = LAYOUTS[states.dtype]
    found: dict[str, Oddity] = {}
    norms = list[npt.NDArray[np.float32]]()
    token = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks(path, states):
            squares = _squares(block, states.dtype)
            if not np.all((squares > 0) & (squares < np.inf)):
                _exactly(found, block, layout, token)
            norms.append(np.sqrt(squares))
            token += len(block)
    return Values(tuple(found.values()), np.concatenate(norms) if norms else np.empty((0, 1), np.float32))


def _exactly(found: dict[str, Oddity], block: npt.NDArray[np.unsignedinteger], layout: Layout, token: int) -> None:
    magnitude = block & block.dtype.type(layout.magnitude)
    top = np.asarray(magnitude.max(axis=-1))
    _note(found, "zero", np.asarray(top == 0), token)
    _note(found, "nan", np.any(magnitude > layout.infinite, axis=-1), token)
    _note(found, "inf", np.any(magnitude == layout.infinite, axis=-1), token)


def _squares(block: npt.NDArray[np.unsignedinteger], dtype: str) -> npt.NDArray[np.float32]:
    """The sum of squares of each row [..., H], float32."""
    rows = block.reshape(-1, block.shape[-1])
    if dtype == "BF16":
        sums = _bf16_squares(rows)
    else:
        floats = rows.view("<f4") if dtype == "F32" else rows.view("<f2").astype("<f4")
        sums = np.vecdot(floats, floats)
    return sums.reshape(block.shape[:-1])


def _bf16_squares(rows: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.float32]:
    """A bf16 is the upper half of a float32: two are taken out of each 32-bit word, which is 3x as fast as to widen."""
    if rows.shape[1] % 2:
        floats = (rows.astype("<u4") << 16).view("<f4")
        return np.asarray(np.vecdot(floats, floats))
    pairs = rows.view("<u4")
    sums = np.empty(len(pairs), np.float32)
    step = max(1, CACHED // (4 * pairs.shape[1]))
    half = np.empty((min(step, len(pairs)), pairs.shape[1]), "<u4")
    for start in range(0, len(pairs), step):
        part = pairs[start : start + step]
        into = half[: len(part)]
        floats = into.view("<f4")
        np.left_shift(part, np.uint32(16), out=into)
        low = np.vecdot(floats, floats)
        np.bitwise_and(part, np.uint32(0xFFFF0000), out=into)
        sums[start : start + step] = low + np.vecdot(floats, floats)
    return sums


def read_tokens(path: Path, token_ids: Tensor) -> bytes:
    """The token ids as stored: little-endian int64."""
    with path.open("rb") as file:
        file.seek(token_ids.start)
        return file.read(8 * token_ids.count)


def blocks(path: Path, states: Tensor) -> Iterator[npt.NDArray[np.unsignedinteger]]:
    """States as [rows, slots, H] a time, about 8 MiB each, as the bits of their floats.

    Raises:
        OSError: they cannot be read, to the end.
    """
    tokens, *between, hidden = states.shape
    slots = math.prod(between)
    dtype = np.dtype(LAYOUTS[states.dtype].bits)
    rows = max(1, BLOCK // (slots * hidden * dtype.itemsize))
    with path.open("rb", buffering=0) as file:
        file.seek(states.start)
        for start in range(0, tokens, rows):
            count = min(rows, tokens - start)
            block = np.fromfile(file, dtype, count * slots * hidden)
            if block.size < count * slots * hidden:
                raise OSError(errno.EIO, f"the file ends at token {start} of {tokens}", str(path))
            yield block.reshape(count, slots, hidden)


def _note(found: dict[str, Oddity], kind: str, rows: npt.NDArray[np.bool_], token: int) -> None:
    places = np.argwhere(rows)
    if not len(places):
        return
    held = found.get(kind)
    first = (held.token, held.slot) if held else (token + int(places[0][0]), int(places[0][1]))
    found[kind] = Oddity(kind, len(places) + (held.count if held else 0), *first)
