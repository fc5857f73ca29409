"""How far two captures of the same rows are apart. Pure, on numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hsops.core.container import Tensor, read_header
from hsops.core.dumps import Sample
from hsops.core.errors import BadDataError

States = npt.NDArray[np.float32]  # [T, slots, H]
FINAL, NORMED = "final", "final after the norm"


@dataclass(frozen=True, slots=True)
class Difference:
    """One state of two captures, row by row: |a - b| / |a|, and the cosine of the angle between them.

    Args:
        slot: ``boundary 31``, ``final`` or ``final after the norm``.
        median, largest: of the rows' relative errors; infinite when a number is not finite.
        row: of the largest.
        above: rows beyond the limit that was given to ``differences``.
        cosine: the smallest of all rows.
        norm: median of the rows' |b| / |a|.
    """

    slot: str
    median: float
    largest: float
    row: int
    above: int
    cosine: float
    norm: float


def slots_of(sample: Sample) -> tuple[str, ...]:
    """The names of a dump's states, in order."""
    before = (FINAL,) if sample.final in ("pre-norm", "both") else ()
    after = (NORMED,) if sample.last_shape else ()
    return (*(f"boundary {k}" for k in sample.boundaries), *before, *after)


def read_states(path: Path, sample: Sample) -> States:
    """``hidden_states`` of a dump as float32, and ``last_hidden_states``, where there are, as one more slot.

    Raises:
        BadDataError: it is not the dump that the manifest describes.
        OSError: it cannot be read.
    """
    tensors = read_header(path)
    states = _read(path, tensors.get("hidden_states"), sample.dtype, sample.shape)
    if not sample.last_shape:
        return states
    last = _read(path, tensors.get("last_hidden_states"), sample.dtype, sample.last_shape)
    return np.concatenate([states, last[:, None]], axis=1)


def differences(a: States, b: States, slots: Sequence[str], *, limit: float) -> tuple[Difference, ...]:
    """Every state of two captures of the same rows.

    Args:
        a, b: [T, slots, H], equal shapes.
        slots: their names.
        limit: rows with a larger relative error are counted in ``above``.
    """
    return tuple(_difference(a[:, i], b[:, i], slot, limit) for i, slot in enumerate(slots))


def row_errors(a: States, b: States) -> npt.NDArray[np.float64]:
    """Relative errors of one state's rows, [T]; infinite where a number is not finite."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.linalg.norm(x - y, axis=-1)
        errors: npt.NDArray[np.float64] = np.where(apart == 0, 0.0, apart / np.linalg.norm(x, axis=-1))
    errors[~np.isfinite(errors)] = np.inf
    return errors


def norm_ratio(a: States, b: States) -> float:
    """How long one state's rows are in ``b``, in those of ``a``: the median of |b| / |a|. Infinite over zeros."""
    with np.errstate(all="ignore"):
        x, y = (np.linalg.norm(one.astype(np.float64), axis=-1) for one in (a, b))
        return float(np.median(np.where(x == y, 1.0, y / x)))


def alike(states: States, slots: Sequence[str]) -> list[tuple[str, str, int]]:
    """Neighbouring states that have rows with the very same numbers, and how many: (slot, next slot, rows)."""
    found = []
    for i in range(len(slots) - 1):
        rows = int(np.all(states[:, i] == states[:, i + 1], axis=-1).sum())
        if rows:
            found.append((slots[i], slots[i + 1], rows))
    return found


def _read(path: Path, tensor: Tensor | None, dtype: str, shape: tuple[int, ...]) -> States:
    if tensor is None or (tensor.dtype, tensor.shape) != (dtype, shape):
        raise BadDataError(f"{path.name} does not hold {dtype} {list(shape)}")
    kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}.get(dtype)
    if kind is None:
        raise BadDataError(f"{path.name} holds {dtype}, which is not known here")
    with path.open("rb") as file:
        file.seek(tensor.start)
        raw = np.fromfile(file, np.dtype(kind), tensor.count).reshape(shape)
    if dtype == "BF16":  # the upper half of a float32
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


def _difference(a: States, b: States, slot: str, limit: float) -> Difference:
    x, y, errors = a.astype(np.float64), b.astype(np.float64), row_errors(a, b)
    with np.errstate(all="ignore"):
        sizes = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
        cosines = np.where(errors == 0, 1.0, (x * y).sum(axis=-1) / sizes)
    cosines[~np.isfinite(cosines)] = -1.0
    row = int(errors.argmax())
    return Difference(
        slot,
        float(np.median(errors)),
        float(errors[row]),
        row,
        int((errors > limit).sum()),
        float(cosines.min()),
        norm_ratio(a, b),
    )
