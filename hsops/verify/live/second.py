"""States that differ by their size alone: does the model itself compute otherwise, or is the capture wrong? Pure.

Kernels differ by the shape of a pass, a router with near ties picks other experts, and both grow with depth: a right
capture of such a model differs too. So the call is sent once more with log-probabilities of P, and the server's own
account of that very pass decides. It must have moved as the states did, and the captured final state must give it.
That account says nothing of the states between, so these must look like the model's noise: none further than the final
state bears out, growing with depth, and as long as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hsops.verify.live.checks import FAIL, PASS, SKIPPED, Check
from hsops.verify.live.evidence import Scores
from hsops.verify.live.judge import LIMITS, Limits, judge_head, judge_pair, rounding_of
from hsops.verify.live.measure import FINAL, NORMED, States, norm_ratio, row_errors

OVER_FINAL = 3.0  # a boundary's median, in the final state's, above a floor
UNLIKE = 1.0  # an error as large as the state: the two have nothing in common
SHRINKS = 0.8  # a median below so much of the largest before it does not grow
NORMS = (0.8, 1.25)  # |other| / |alone|: noise turns a state, zeros and parts of a sum change its length
FELT = 10.0  # log-probabilities that moved by less than a tenth of what the states say did not move with them

Errors = npt.NDArray[np.float64]  # of one state's rows


@dataclass(frozen=True, slots=True)
class Second:
    """What the call gave the second time, with log-probabilities.

    Args:
        alone, other: P's states in the passes that the log-probabilities are of, [T, slots, H].
        same_pass: the passes had as many rows as those of the first time.
        own: the server's log-probabilities, alone and in that call.
        scores: those of the captured final state against the server's, in that call; or why there are none.
    """

    alone: States
    other: States
    same_pass: bool
    own: tuple[Sequence[float], Sequence[float]]
    scores: Mapping[str, Scores] | str


def by_size(check: Check, a: States, b: States, slots: Sequence[str], dtype: str) -> bool:
    """Whether a pair failed by finite differences alone, none of them at a boundary only."""
    if check.status != FAIL or a.shape != b.shape:
        return False
    return not _stray(a, b, slots, LIMITS[dtype])


def judge_second(first: Check, second: Second, slots: Sequence[str], dtype: str) -> Check:
    """The verdict on a pair that failed by size: ``pass``, ``fail``, or ``skipped`` where nothing decides."""
    limits = LIMITS[dtype]
    if second.alone.shape != second.other.shape:
        return _failed(first, f"sent again: shapes {list(second.alone.shape)} and {list(second.other.shape)}")
    if stray := _stray(second.alone, second.other, slots, limits):
        return _failed(first, f"sent again: {stray}")
    errors = _errors(second.alone, second.other, slots)
    pair = judge_pair(first.name, second.alone, second.other, slots, dtype)
    if pair.status == PASS:
        once = f"sent again, the states were within the limits ({pair.reason})"
        if second.same_pass:
            return _failed(first, f"{once}, in a pass of the same rows")
        return undecided(first, f"{once}, in a pass of other rows", dtype)
    return _weigh(first, second, _Own.of(second, _last(errors)[:-1], dtype), dtype)


def undecided(first: Check, why: str, dtype: str) -> Check:
    """Skipped when the differences may be the model's: not in float32, and they grow from state to state."""
    medians = {state["slot"]: state["median"] for state in first.figures["states"]}
    if dtype == "F32" or _shrinks(medians, LIMITS[dtype]) or max(medians.values()) >= UNLIKE:
        return _failed(first, why)
    return Check(first.name, SKIPPED, f"undecided: {first.reason}; {why}", first.figures, first.threshold)


@dataclass(frozen=True, slots=True)
class _Own:
    """How far the server's own log-probabilities moved, over the rows whose last state did.

    Args:
        rows: how many.
        moved: median, of their absolute differences.
        expected: by how much states that are so far apart move them, roughly.
        rounding: up to so much is none.
    """

    rows: int
    moved: float
    expected: float
    rounding: float

    @classmethod
    def of(cls, second: Second, last: Errors, dtype: str) -> _Own:
        """``last``: errors of the last state's rows that have a next token."""
        alone, other = (np.asarray(one, np.float64) for one in second.own)
        far = last > LIMITS[dtype].median
        rows = far if far.any() else np.ones_like(far)
        # without the head no logit is known: the least probable token's logit is about so far from the largest
        known = () if isinstance(second.scores, str) else second.scores.values()
        largest = max((one.largest for one in known), default=float(np.abs(alone).max()))
        with np.errstate(invalid="ignore"):
            moved = float(np.median(np.abs(alone - other)[rows]))
            expected = float(np.median(last[rows]) * np.std(alone))
        return cls(int(rows.sum()), moved, expected, rounding_of(float(largest), dtype))

    def __str__(self) -> str:
        return (
            f"the server's own log-probabilities moved by {self.moved:.2g} (median of {self.rows:,} tokens; "
            f"rounding {self.rounding:.2g}, states so far apart: about {self.expected:.2g})"
        )


def _weigh(first: Check, second: Second, own: _Own, dtype: str) -> Check:
    head = None if isinstance(second.scores, str) else judge_head(second.scores, dtype)
    told: dict[str, Any] = {"rows": own.rows, "moved": own.moved, "rounding": own.rounding, "expected": own.expected}
    told |= {"lm_head": head.figures if head else None}
    first = Check(first.name, FAIL, first.reason, {**first.figures, "server": told}, first.threshold)
    if head and head.status == FAIL:
        return _failed(
            first, f"the server's log-probabilities of such a pass are not this state's: {head.reason}; {own}"
        )
    if own.moved <= own.rounding and own.expected > 2 * own.rounding:
        return _failed(first, f"the model does not account for it: {own}")
    if not (own.moved > own.rounding and own.moved >= own.expected / FELT):
        return undecided(first, f"log-probabilities are too coarse to tell whose doing it is: {own}", dtype)
    if head is None:
        why = f"the model computes otherwise in such a pass, too: {own}. Whether the states follow it is not known: "
        return undecided(first, why + str(second.scores), dtype)
    reason = f"{first.reason}: the model's own doing: {own}, and the captured states follow: {head.reason}"
    return Check(first.name, PASS, reason, first.figures, first.threshold)


def _stray(a: States, b: States, slots: Sequence[str], limits: Limits) -> str:
    """A number that is none, or a state that is not what the model's own noise makes of it."""
    errors = _errors(a, b, slots)
    if odd := [slot for slot, e in errors.items() if not np.isfinite(e).all()]:
        return f"{odd[0]} has numbers that are not finite"
    if further := _further(errors, limits):
        return further
    for i, slot in enumerate(slots):
        if not NORMS[0] <= (norm := norm_ratio(a[:, i], b[:, i])) <= NORMS[1]:
            return f"{slot}: its rows are {norm:.2g} times as long (median), which noise does not do"
    return _shrinks({slot: float(np.median(e)) for slot, e in errors.items()}, limits)


def _further(errors: Mapping[str, Errors], limits: Limits) -> str:
    """A state that goes further than the final state bears out."""
    if FINAL not in errors and NORMED not in errors:
        return ""
    final = _last(errors)
    middle = float(np.median(final))
    most = min(min(limits.floor, limits.median) + OVER_FINAL * middle, max(UNLIKE, 1.5 * middle))
    for slot, e in errors.items():
        if (median := float(np.median(e))) >= most:
            return f"{slot}: median {median:.2g}, the final state's is {middle:.2g}"
        alone = int(((e > limits.row) & (final <= limits.median)).sum())
        if alone > limits.share * len(e):
            return f"{slot}: {alone:,} of {len(e):,} rows above {limits.row:g} whose final state is as it was"
    return ""


def _shrinks(medians: Mapping[str, float], limits: Limits) -> str:
    """A state beyond the limit from which a later one comes that is less far: noise stays in the stream, and grows."""
    largest, where = 0.0, ""
    for slot, median in medians.items():
        if slot == NORMED and FINAL in medians:
            continue  # no longer the stream, and lm_head answers for both
        if largest > limits.median and median < SHRINKS * largest:
            return f"{where}: median {largest:.2g}, and {slot} after it {median:.2g}: the difference does not grow"
        if median > largest:
            largest, where = median, slot
    return ""


def _errors(a: States, b: States, slots: Sequence[str]) -> dict[str, Errors]:
    return {slot: row_errors(a[:, i], b[:, i]) for i, slot in enumerate(slots)}


def _last(errors: Mapping[str, Errors]) -> Errors:
    """The final state's, before the norm where both are captured; else the last boundary's."""
    return errors.get(FINAL, [*errors.values()][-1])


def _failed(first: Check, why: str) -> Check:
    return Check(first.name, FAIL, f"{first.reason}; {why}", first.figures, first.threshold)
