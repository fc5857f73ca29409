"""States that differ by size: a model that computes otherwise is told from a capture that is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from hsops.verify.live.checks import FAIL, PASS, SKIPPED, Check
from hsops.verify.live.evidence import Scores
from hsops.verify.live.judge import judge_pair
from hsops.verify.live.measure import States
from hsops.verify.live.second import Second, by_size, judge_second, undecided

SLOTS = ("boundary 12", "boundary 21", "final")
ROWS, HIDDEN, TOKENS = 300, 64, 50
SEEN = (0.26, 0.47, 0.52)  # medians on an H200, of a right capture
NO_HEAD = "norm or lm_head is stored as F8_E4M3"


def states(seed: int = 0) -> States:
    """[300, 3, 64]."""
    return np.random.default_rng(seed).standard_normal((ROWS, 3, HIDDEN)).astype(np.float32)


def apart(clean: States, sizes: tuple[float, ...] = SEEN, rows: slice = slice(None)) -> States:
    """With relative errors of about these sizes, state by state, in some of the rows."""
    noise = np.random.default_rng(1).standard_normal(clean.shape) * np.array(sizes)[None, :, None]
    other = clean.copy()
    other[rows] += noise[rows].astype(np.float32)
    return other


def account(of: States, gain: float = 2.0) -> tuple[float, ...]:
    """The log-probabilities that a head with an RMSNorm gives to tokens 1 to T-1."""
    chance = np.random.default_rng(9)
    matrix, tokens = chance.standard_normal((HIDDEN, TOKENS)) / HIDDEN**0.5, chance.integers(0, TOKENS, ROWS - 1)
    x = of[:-1, -1].astype(np.float64)
    logits = gain * (x / np.sqrt((x**2).mean(axis=-1, keepdims=True))) @ matrix
    picked: tuple[float, ...] = tuple(logits[np.arange(ROWS - 1), tokens] - np.log(np.exp(logits).sum(axis=-1)))
    return picked


@dataclass
class Case:
    """What was captured alone and in company, and what the model really had in company."""

    captured: States
    real: States
    gain: float = 2.0
    dtype: str = "BF16"
    same_pass: bool = True
    head: bool = True
    first: States | None = None

    def pair(self) -> Check:
        """The first look."""
        return judge_pair("batch", states(), self.captured if self.first is None else self.first, SLOTS, self.dtype)

    def judge(self) -> Check:
        """The second."""
        own = account(states(), self.gain), account(self.real, self.gain)
        scores = {"final": Scores(account(self.captured, self.gain), own[1], 1.0, 3.0 * self.gain)}
        second = Second(states(), self.captured, self.same_pass, own, scores if self.head else NO_HEAD)
        return judge_second(self.pair(), second, SLOTS, self.dtype)


MOVED = apart(states())


def test_what_the_model_computes_otherwise_is_no_fault_of_the_capture() -> None:
    """The false alarm of an H200: medians of 0.26, 0.47 and 0.52, and a capture that was right."""
    case = Case(captured=MOVED, real=MOVED)
    first = case.pair()
    assert first.status == FAIL
    assert [state["median"] for state in first.figures["states"]] == pytest.approx(SEEN, rel=0.1)
    assert by_size(first, states(), MOVED, SLOTS, "BF16")

    check = case.judge()

    assert check.status == PASS
    assert "boundary 12: median 0.2" in check.reason
    assert "the model's own doing: the server's own log-probabilities moved by" in check.reason
    assert "final: 299 log-probabilities: median off by 0" in check.reason
    told = check.figures["server"]
    assert told["moved"] > 5 * told["rounding"]
    assert told["lm_head"]["median"] == 0


@pytest.mark.parametrize(
    "captured, real, why",
    [
        (MOVED, states(), "log-probabilities of such a pass are not this state's"),  # the model did not move
        (states(5), MOVED, "log-probabilities of such a pass are not this state's"),  # rows of another prompt
        (np.roll(states(), 1, axis=0), states(), "not this state's"),  # shifted
        (states() * np.float32(1.2), states(), "the model does not account for it"),  # a norm takes no notice
    ],
)
def test_a_wrong_final_state_fails(captured: States, real: States, why: str) -> None:
    """With the figures of both sides."""
    case = Case(captured=captured, real=real)
    assert by_size(case.pair(), states(), captured, SLOTS, "BF16")

    check = case.judge()

    assert (check.status, why in check.reason) == (FAIL, True), check.reason
    assert "moved by" in check.reason


@pytest.mark.parametrize("sizes", [(0.05, 0.6, 0.12), (0.02, 0.2, 0.02), (0.26, 1.45, 0.52)])
def test_a_boundary_that_goes_further_than_the_final_state_fails(sizes: tuple[float, ...]) -> None:
    """A partial sum at one boundary, or other rows there; whatever the server's log-probabilities do."""
    other = apart(states(), sizes)
    case = Case(captured=other, real=other)

    assert not by_size(case.pair(), states(), other, SLOTS, "BF16")
    check = replace(case, first=MOVED).judge()
    assert check.status == FAIL
    assert "sent again: boundary 21: median" in check.reason


CUT = (0.31, 0.53, 0.59)  # the same model's medians in two chunks


def turned(sizes: tuple[float, ...]) -> States:
    """States that are as long as they were, with relative errors of about these sizes."""
    clean = states()
    other = apart(clean, tuple(e / (1 - (e / 2) ** 2) ** 0.5 for e in sizes))
    return other * (np.linalg.norm(clean, axis=-1, keepdims=True) / np.linalg.norm(other, axis=-1, keepdims=True))


@pytest.mark.parametrize("sizes", [SEEN, CUT])
def test_noise_turns_states_and_leaves_their_length(sizes: tuple[float, ...]) -> None:
    """Both real good cases."""
    other = turned(sizes)
    case = Case(captured=other, real=other)

    assert [state["norm"] for state in case.pair().figures["states"]] == pytest.approx([1, 1, 1])
    assert by_size(case.pair(), states(), other, SLOTS, "BF16")
    assert case.judge().status == PASS


@pytest.mark.parametrize("factor", [0.0, 0.5, 0.75, 1.3, -1.0])
@pytest.mark.parametrize("slot", [0, 1])
def test_a_boundary_of_another_length_fails(factor: float, slot: int) -> None:
    """Zeros, a partial sum of two ranks; log-probabilities say nothing of them."""
    other = turned(SEEN)
    other[:, slot] *= np.float32(factor)
    case = Case(captured=other, real=other)

    assert not by_size(case.pair(), states(), other, SLOTS, "BF16")
    check = replace(case, first=MOVED).judge()
    assert (check.status, f"sent again: {SLOTS[slot]}: " in check.reason) == (FAIL, True), check.reason


def test_a_partial_sum_no_further_than_noise_is_told_by_its_length() -> None:
    """As far from what it was as the model's own noise would take it."""
    other = MOVED.copy()
    other[:, 0] = states()[:, 0] * np.float32(0.7)

    check = Case(captured=other, real=other, first=MOVED).judge()

    assert check.status == FAIL
    assert "boundary 12: its rows are 0.7 times as long (median)" in check.reason


@pytest.mark.parametrize("sizes", [(0.4, 0.05, 0.15), (0.25, 0.03, 0.09), (0.02, 0.25, 0.15)])
def test_a_difference_that_does_not_grow_fails(sizes: tuple[float, ...]) -> None:
    """One boundary alone, no further than three times the final state: noise would have stayed in the stream."""
    other = apart(states(), sizes)
    case = Case(captured=other, real=other)

    assert not by_size(case.pair(), states(), other, SLOTS, "BF16")
    check = replace(case, first=MOVED).judge()
    assert check.status == FAIL
    assert "the difference does not grow" in check.reason


def test_the_state_after_the_norm_need_not_grow() -> None:
    """The norm's weights may make the difference smaller; ``lm_head`` answers for both final states."""
    slots, other = ("boundary 12", "final", "final after the norm"), apart(states(), (0.26, 0.52, 0.3))
    pair = judge_pair("batch", states(), other, slots, "BF16")

    assert by_size(pair, states(), other, slots, "BF16")
    assert not by_size(pair, states(), other, (*slots[:2], "boundary 30"), "BF16")


def test_rows_of_a_boundary_whose_final_state_is_as_it_was_fail() -> None:
    """A tenth of the rows at one boundary: the medians do not show it."""
    other = apart(states(), (0.02, 0.02, 0.02))
    other[40:70, 1] = states(5)[40:70, 1]

    assert not by_size(Case(other, other).pair(), states(), other, SLOTS, "BF16")
    check = Case(other, other, first=MOVED).judge()
    assert check.status == FAIL
    assert "boundary 21: 30 of 300 rows above 0.5 whose final state is as it was" in check.reason


def test_rerouted_rows_are_looked_at_alone() -> None:
    """A tenth of the rows took other experts: the median over all of them did not move, theirs did."""
    other = apart(apart(states(), (0.01, 0.01, 0.01)), (0.7, 0.8, 0.9), slice(40, 70))
    case = Case(captured=other, real=other)
    assert case.pair().status == FAIL

    check = case.judge()

    assert (check.status, check.figures["server"]["rows"]) == (PASS, 30)


def test_without_a_head_the_server_still_tells_whether_it_moved() -> None:
    """That is no pass: whether the captured states follow it is not known."""
    check = Case(captured=MOVED, real=MOVED, head=False).judge()
    still = Case(captured=MOVED, real=states(), head=False).judge()

    assert check.status == SKIPPED
    assert check.reason.startswith("undecided: boundary 12: median 0.2")
    assert check.reason.endswith(f"Whether the states follow it is not known: {NO_HEAD}")
    assert still.status == FAIL
    assert "the model does not account for it" in still.reason


def test_log_probabilities_that_hardly_differ_tell_nothing() -> None:
    """A head of random weights near zero: rounding covers whatever happens."""
    check = Case(captured=MOVED, real=MOVED, gain=0.002).judge()

    assert check.status == SKIPPED
    assert "too coarse" in check.reason


def test_what_does_not_happen_again() -> None:
    """In the same pass it is a fault; in a pass of other rows nothing is known."""
    again = apart(states(), (0.005, 0.01, 0.02))

    check = Case(again, again, first=MOVED).judge()
    other = Case(again, again, first=MOVED, same_pass=False).judge()

    assert check.status == FAIL
    assert "within the limits" in check.reason
    assert other.status == SKIPPED


@pytest.mark.parametrize(
    "dtype, medians, status",
    [
        ("BF16", SEEN, SKIPPED),
        ("F16", (0.05, 0.07, 0.06), SKIPPED),
        ("BF16", (0.47, 0.26, 0.52), FAIL),  # does not grow
        ("BF16", (1.41, 1.41, 1.41), FAIL),  # nothing in common
        ("BF16", (0.5, 0.6, 1.0), FAIL),  # an error of just the state's size: zeros
        ("BF16", (0.03, 0.02, 0.02), SKIPPED),  # within the limit all of them: single rows are what failed
        ("F32", SEEN, FAIL),
    ],
)
def test_without_evidence_only_what_grows_in_few_bits_is_undecided(
    dtype: str, medians: tuple[float, ...], status: str
) -> None:
    """Never a pass."""
    figures: dict[str, Any] = {"states": [{"slot": s, "median": m} for s, m in zip(SLOTS, medians, strict=True)]}

    assert undecided(Check("batch", FAIL, "seen", figures), "no answer", dtype).status == status


def test_in_float32_the_evidence_counts_too() -> None:
    """One row took another expert; a row that only a boundary has is a fault; without the head it stays a failure."""
    one = apart(states(), (0.3, 0.4, 0.5), slice(7, 8))
    border = one.copy()
    border[150:153, 0] = states(5)[150:153, 0]

    assert Case(one, one, dtype="F32").judge().status == PASS
    assert Case(one, states(), dtype="F32").judge().status == FAIL
    assert Case(one, one, dtype="F32", head=False).judge().status == FAIL
    assert not by_size(Case(border, border, dtype="F32").pair(), states(), border, SLOTS, "F32")


def test_other_shapes_and_numbers_that_are_none_are_not_size() -> None:
    """They fail at once, and the second time."""
    broken = MOVED.copy()
    broken[3, 0, 0] = np.nan

    for other in (broken, MOVED[:-1]):
        pair = Case(other, MOVED).pair()
        assert pair.status == FAIL
        assert not by_size(pair, states(), other, SLOTS, "BF16")
    assert not by_size(Case(states(), states()).pair(), states(), states(), SLOTS, "BF16")
    assert Case(broken, MOVED, first=MOVED).judge().status == FAIL
    own = account(states()), account(states())
    shorter = Second(states(), MOVED[:-1], same_pass=True, own=own, scores=NO_HEAD)
    assert judge_second(Case(MOVED, MOVED).pair(), shorter, SLOTS, "BF16").status == FAIL
