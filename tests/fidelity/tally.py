"""A whole run against the reference, in figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.fidelity.truth import WRONG_ROW, Truth, hold


@dataclass(frozen=True, slots=True)
class Tally:
    """What a run gave.

    Args:
        samples, rows: compared.
        errors: the largest relative error of a sample, by state; without samples that went another way at a tie.
        row_errors: the largest of a row that is not wrong, by state.
        wrong: rows that are wrong, by state; without those of ``ties``.
        ties: samples whose wrong rows all come after a tie of experts, and how many such rows they have at most.
    """

    samples: int
    rows: int
    errors: dict[str, float]
    row_errors: dict[str, float]
    wrong: dict[str, int]
    ties: dict[str, int]


def tally(folder: Path, truth: Truth, boundaries: Sequence[int]) -> Tally:
    """Hold every dump in ``folder`` against the reference."""
    rows: dict[str, int] = {}
    ties: dict[str, int] = {}
    errors: dict[str, float] = {}
    row_errors: dict[str, float] = {}
    wrong: dict[str, int] = {}
    for one in hold(folder, truth, boundaries):
        rows[one.sample] = len(one.rows)
        bad = np.flatnonzero(one.rows > WRONG_ROW)
        good = one.rows[one.rows <= WRONG_ROW]
        row_errors[one.name] = max([row_errors.get(one.name, 0.0), *map(float, good)])
        wrong.setdefault(one.name, 0)
        if len(bad) and bad[0] >= one.decided:
            ties[one.sample] = max(ties.get(one.sample, 0), len(bad))
            continue
        wrong[one.name] += len(bad)
        errors[one.name] = max(errors.get(one.name, 0.0), one.error)
    return Tally(len(rows), sum(rows.values()), errors, row_errors, wrong, ties)
