"""Right and wrong captures, as numbers: each wrong one fails the check that is made for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsops.verify.live.checks import FAIL, KINDS, PASS, SKIPPED, Check
from hsops.verify.live.evidence import Scores, Taken
from hsops.verify.live.judge import judge_came, judge_company, judge_distinct, judge_head, judge_pair, judge_ranks
from hsops.verify.live.measure import States, differences
from tests.samples import SAMPLE

SLOTS = ("boundary 1", "boundary 3", "final")
ROWS, HIDDEN = 300, 64


def states(seed: int = 0) -> States:
    """[300, 3, 64], the residual stream growing from slot to slot."""
    chance = np.random.default_rng(seed)
    return np.cumsum(chance.standard_normal((ROWS, 3, HIDDEN)), axis=1).astype(np.float32)


def noisy(clean: States, size: float, seed: int = 1) -> States:
    """With relative noise of ``size``, larger at later slots."""
    noise = np.random.default_rng(seed).standard_normal(clean.shape) * np.abs(clean).mean()
    return (clean + size * noise * np.array([0.5, 0.8, 1.0])[None, :, None]).astype(np.float32)


def rounded(clean: States) -> States:
    """As bfloat16 stores it."""
    return (clean.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def taken(passes: tuple[int, ...] = (300,), **fields: object) -> Taken:
    """A manifest line of a check request."""
    return Taken(replace(SAMPLE, **{"tokens": 300, **fields}), passes)  # type: ignore[arg-type]


# ranks ----------------------------------------------------------------------------------------------------------------


def test_ranks_with_the_same_bytes_pass() -> None:
    """Two requests on two ranks."""
    check = judge_ranks({"alone-1": (taken(), taken()), "batch-1": (taken(), taken())}, 2)

    assert (check.status, check.figures["rows"], check.figures["differ"]) == (PASS, 600, [])


def test_a_partial_sum_shows_as_ranks_that_differ() -> None:
    """However small the difference: a checksum tells."""
    check = judge_ranks({"alone-1": (taken(), taken(checksum="xxh3:00000000000000ff"))}, 2)

    assert (check.status, check.figures["differ"]) == (FAIL, ["alone-1"])


def test_a_rank_that_wrote_nothing_fails() -> None:
    """Silence is no equality."""
    check = judge_ranks({"alone-1": (taken(), None)}, 2)

    assert check.status == FAIL
    assert "TP1 wrote nothing" in check.reason


def test_one_rank_or_no_dump_is_no_comparison() -> None:
    """Skipped, never passed."""
    failed = taken(status="failed", checksum="", reason="no space")

    assert judge_ranks({"alone-1": (taken(),)}, 1).status == SKIPPED
    assert judge_ranks({"alone-1": (failed, failed)}, 2).status == SKIPPED


def test_a_sample_that_failed_on_one_rank_only_fails() -> None:
    """That rank took part in the pass and lost its rows."""
    failed = taken(status="failed", checksum="", reason="no space")

    assert judge_ranks({"alone-1": (taken(), failed)}, 2).status == FAIL


# states of their own --------------------------------------------------------------------------------------------------


def test_states_of_their_own_pass_and_references_fail() -> None:
    """Without a copy every boundary ends as the last state that was written into its memory."""
    same = states()
    same[:, 1] = same[:, 2]

    assert judge_distinct({"alone-1": states()}, SLOTS).status == PASS
    check = judge_distinct({"alone-1": states(), "batch-1": same}, SLOTS)
    assert check.status == FAIL
    assert check.reason == "boundary 3 equals final in 300 of 300 rows of 'batch-1'"
    assert judge_distinct({"alone-1": states()[:, :1]}, SLOTS[:1]).status == SKIPPED
    assert judge_distinct({}, ()).status == SKIPPED


def test_a_few_rows_that_a_layer_leaves_alone_are_no_reference() -> None:
    """Seen on an H200 with weights near zero: 35 of 300 rows in bfloat16."""
    same = states()
    same[:35, 1] = same[:35, 2]

    check = judge_distinct({"alone-1": same}, SLOTS)

    assert check.status == PASS
    assert check.reason == "boundary 3 equals final in 35 of 300 rows of 'alone-1'"


# two captures of the same prompt --------------------------------------------------------------------------------------


def test_equal_states_pass_bit_for_bit() -> None:
    """A deterministic server."""
    check = judge_pair("repeat", states(), states(), SLOTS, "F32")

    assert (check.status, check.reason) == (PASS, "bit for bit equal")
    assert [s["largest"] for s in check.figures["states"]] == [0, 0, 0]


@pytest.mark.parametrize("dtype, size", [("F32", 1e-6), ("BF16", 0.02), ("F16", 0.003)])
def test_noise_of_another_batch_shape_passes(dtype: str, size: float) -> None:
    """What rounding does at that precision."""
    assert judge_pair("batch", states(), noisy(states(), size), SLOTS, dtype).status == PASS


@pytest.mark.parametrize("dtype, size", [("F32", 1e-6), ("BF16", 0.02)])
@pytest.mark.parametrize("part", [0.6, 0.12])
def test_a_partial_sum_at_one_boundary_fails(dtype: str, size: float, part: float) -> None:
    """0.6 in the lab's model, 0.12 where one layer adds little to the stream; the final state is never affected."""
    other = noisy(states(), size)
    other[:, 1] = noisy(states(), part * 1.25)[:, 1]

    check = judge_pair("batch", states(), other, SLOTS, dtype)

    assert check.status == FAIL
    assert "boundary 3" in check.reason
    assert "boundary 1" not in check.reason


def test_a_few_rerouted_rows_pass_in_bfloat16_and_not_in_float32() -> None:
    """A router that picks another expert moves its row alone, and in float32 it does not."""
    other = noisy(rounded(states()), 0.02)
    other[[5, 90, 200], 1:] *= -1

    assert judge_pair("batch", rounded(states()), other, SLOTS, "BF16").status == PASS
    assert judge_pair("batch", states(), noisy(states(), 1e-6), SLOTS, "F32").status == PASS
    one = noisy(states(), 1e-6)
    one[7] = states()[8]
    check = judge_pair("batch", states(), one, SLOTS, "F32")
    assert check.status == FAIL
    assert "1 of 300 rows" in check.reason
    assert "row 7" in check.reason


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_rows_of_another_prompt_and_shifted_rows_fail(dtype: str) -> None:
    """The right numbers at the wrong places."""
    assert judge_pair("cut", states(), states(5), SLOTS, dtype).status == FAIL
    assert judge_pair("cut", states(), np.roll(states(), 1, axis=0), SLOTS, dtype).status == FAIL
    half = states()
    half[150:] = np.roll(half, 1, axis=0)[150:]
    assert judge_pair("cut", states(), half, SLOTS, dtype).status == FAIL


def test_missing_rows_and_numbers_that_are_none_fail() -> None:
    """Another shape; NaN."""
    broken = states()
    broken[3, 0, 0] = np.nan

    assert judge_pair("cut", states(), states()[:-1], SLOTS, "F32").status == FAIL
    assert judge_pair("cut", states(), broken, SLOTS, "F32").status == FAIL


def test_differences_are_what_they_are_called() -> None:
    """Relative error, its row, the rows above a limit, and the cosine."""
    other = states()
    other[4, 0] *= 1.5
    other[9, 0] *= -1

    first = differences(states(), other, SLOTS, limit=0.1)[0]

    assert (first.slot, first.row, first.above, first.median) == ("boundary 1", 9, 2, 0)
    assert first.largest == pytest.approx(2, rel=1e-6)
    assert first.cosine == pytest.approx(-1, rel=1e-6)


# in whose company -----------------------------------------------------------------------------------------------------


def good(name: str) -> Check:
    """A pair that is equal."""
    return judge_pair(name, states(), states(), SLOTS, "F32")


def test_a_batch_says_how_large_it_was() -> None:
    """Beyond 2,048 rows it covers what fusion does not; below, that is said."""
    assert judge_company(good("batch"), taken(), taken((2656,))).reason.startswith("in a pass of 2,656 rows: ")
    check = judge_company(good("batch"), taken(), taken((1312,)))
    assert (check.status, check.figures["pass_rows"]) == (PASS, {"alone": [300], "batch": [1312]})
    assert "fusion ends at 2,048" in check.reason


def test_requests_that_were_not_computed_together_prove_nothing() -> None:
    """Skipped; but a difference is one however it came about."""
    bad = judge_pair("batch", states(), states(5), SLOTS, "F32")

    assert judge_company(good("batch"), taken(), taken((300,))).status == SKIPPED
    assert judge_company(good("cut"), taken(), taken((300,))).status == SKIPPED
    assert judge_company(good("cut"), taken((64, 64)), taken((64, 64))).status == SKIPPED
    assert judge_company(good("cut"), taken(), taken((8192, 150))).status == PASS
    assert judge_company(bad, taken(), taken((300,))).status == FAIL


# the head -------------------------------------------------------------------------------------------------------------


def of(one: Scores) -> dict[str, Scores]:
    """As the state before the norm."""
    return {"final": one}


def scores(off: float = 0.0, agreement: float = 1.0) -> Scores:
    """299 log-probabilities around -5."""
    server = np.random.default_rng(3).normal(-5, 2, ROWS - 1)
    return Scores(tuple(server + off), tuple(server), agreement, 20.0)


def test_the_same_log_probabilities_pass() -> None:
    """But for what rounding does: 1e-5 in float32, a tenth in bfloat16 at logits of 20."""
    assert judge_head(of(scores(1e-5)), "F32").status == PASS
    assert judge_head(of(scores(0.06, 0.97)), "BF16").status == PASS


def test_another_state_than_the_final_one_fails() -> None:
    """By the median, by the largest, or by the best tokens."""
    shifted = scores()

    assert judge_head(of(scores(1e-3)), "F32").status == FAIL
    assert judge_head(of(scores(0.5)), "BF16").status == FAIL
    assert judge_head(of(scores(0.0, 0.5)), "F32").status == FAIL
    assert judge_head(of(Scores(shifted.server[1:], shifted.server[:-1], 1.0, 20.0)), "BF16").status == FAIL
    assert judge_head(of(Scores((float("nan"),) * 299, shifted.server, 1.0, 20.0)), "F32").status == FAIL


def test_both_final_states_are_judged() -> None:
    """With ``final: both`` either may be the wrong one."""
    check = judge_head({"final": scores(), "final after the norm": scores(1.0)}, "BF16")

    assert (check.status, check.figures["state"]) == (FAIL, "final after the norm")


# dumps that did not come ----------------------------------------------------------------------------------------------


def test_a_dump_that_is_missing_failed_or_of_other_tokens_fails_its_check() -> None:
    """With a prefix cache the second request has no rows of its own, and its line says so."""
    cached = taken(status="failed", reason="its first 299 rows came from a cache and were not computed")

    assert judge_came("repeat", taken(), SAMPLE.token_hash, 300) is None
    for line in (None, cached, taken(tokens=299), taken(token_hash="sha256:0000000000000000")):
        check = judge_came("repeat", line, SAMPLE.token_hash, 300)
        assert check is not None
        assert check.status == FAIL
    assert "came from a cache" in judge_came("repeat", cached, "", 300).reason  # type: ignore[union-attr]


def test_every_failure_says_what_it_means_and_what_to_do() -> None:
    """In the envelope too."""
    for name in KINDS:
        told = Check(name, FAIL, "seen").as_json()
        assert told["means"]
        assert told["fix"]
        assert "means" not in Check(name, PASS, "seen").as_json()
