"""How long the rows are at each boundary, over all dumps, and which dumps are unlike the others.

A dump's word is the median of its rows' L2 norms: single rows say little, as a few tokens (the first one above all)
have norms a hundred times the others' in most models. Nothing here is a fault; but a boundary of another layer, a state
after the norm where one before it belongs, or rows of noise move the median, and nothing else tells of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hsops.core.dump_check import Checked, Size
from hsops.core.dumps import Sample

BEFORE, AFTER = "final, before the norm", "final, after the norm"
LEAST_DUMPS = 8
"""Among fewer nobody can say which one is unlike the others."""
_SIGMAS = 8.0  # robust ones: 1.4826 x the median absolute deviation, of logarithms
_LEAST_FACTOR = 1.5  # a folder of nearly equal prompts deviates by nothing
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Outlier:
    """A dump whose rows are unlike the other dumps'.

    Args:
        file: which.
        median: over its rows.
    """

    file: str
    median: float


@dataclass(frozen=True, slots=True)
class Norms:
    """The rows of one boundary over all good dumps of one shape.

    Args:
        where: ``boundary 3``, ``final, before the norm``, ``final, after the norm``.
        dumps: how many.
        median: of the dumps' medians.
        low, high: the least and the largest of these.
        largest: the longest row.
        file, token: where that is.
        outliers: the dumps that are unlike the others, the farthest first, at most 20 of them.
        unlike: how many of those there are.
    """

    where: str
    dumps: int
    median: float
    low: float
    high: float
    largest: float
    file: str
    token: int
    outliers: tuple[Outlier, ...]
    unlike: int


def summary(dumps: Sequence[Sample], checked: Mapping[str, Checked]) -> tuple[Norms, ...]:
    """By place, in the order of the layers; dumps with faults are left out."""
    places: dict[str, list[tuple[Sample, Size]]] = {}
    for sample in dumps:
        if sizes := checked[sample.id].sizes:
            for where, size in zip(slots(sample), sizes, strict=False):
                places.setdefault(where, []).append((sample, size))
    return tuple(_norms(where, held) for where, held in sorted(places.items(), key=lambda item: _order(item[0])))


def slots(sample: Sample) -> list[str]:
    """What ``Checked.sizes`` are of. One more than the manifest says when a dump has a state that it does not name."""
    before = [BEFORE] * (sample.final in ("pre-norm", "both"))
    return [*(f"boundary {k}" for k in sample.boundaries), *before, AFTER]


def _order(where: str) -> int:
    return int(where.removeprefix("boundary ")) if where not in (BEFORE, AFTER) else (1 + (where == AFTER)) << 60


def _norms(where: str, held: Sequence[tuple[Sample, Size]]) -> Norms:
    medians = [size.median for _, size in held]
    longest, size = max(held, key=lambda one: one[1].largest)
    far = _unlike(medians)
    named = tuple(Outlier(held[i][0].file, medians[i]) for i in far[:_NAMED])
    middle, low, high = statistics.median(medians), min(medians), max(medians)
    return Norms(where, len(held), middle, low, high, size.largest, longest.file, size.token, named, len(far))


def _unlike(medians: Sequence[float]) -> list[int]:
    """Which are far from the rest, the farthest first. In logarithms: twice is as far as half."""
    if len(medians) < LEAST_DUMPS:
        return []
    logs = [math.log(max(m, 1e-30)) for m in medians]
    middle = statistics.median(logs)
    far = [abs(value - middle) for value in logs]
    limit = max(_SIGMAS * 1.4826 * statistics.median(far), math.log(_LEAST_FACTOR))
    return sorted((i for i, value in enumerate(far) if value > limit), key=lambda i: -far[i])
