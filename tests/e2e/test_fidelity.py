"""The promise behind everything else: a row is what the model computed at that boundary.

Fetched dumps of real SGLang servers at TP 2 against Hugging Face transformers' DeepSeek-V3 with the same weights, in
float32: an off-by-one boundary is then wrong by a factor of 300,000 of what rounding does; in bfloat16 it would be 3.
One release of each way to capture; all releases: ``make matrix``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.practice import MINUTES, practice
from tests.fidelity import naive, prompts
from tests.fidelity.round import BOUNDARIES, OFF_BY_ONE, faults, play, play_naive, tree
from tests.fidelity.truth import LIMIT, Truth, of_the_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(20 * MINUTES)]

IMITATED = "in-place-norms,deferred-allreduce"  # what only a GPU does; a right capture does not notice
# prepare-attn; layers-to-capture beside a residual; layers-to-capture where the loop has none any more
GENERATIONS = {"0.5.9": IMITATED, "0.5.14": "", "0.5.23": IMITATED}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """Every state of every prompt by transformers."""
    return of_the_tiny_model(prompts.short(), tmp_path_factory.mktemp("truth"))


@pytest.mark.parametrize("sglang, imitate", GENERATIONS.items())
def test_fetched_states_equal_the_reference(
    sglang: str, imitate: str, truth: Truth, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone, batched and chunked; equal on both ranks; a boundary one layer off is told; the revert is whole."""
    with practice(tmp_path, sglang=sglang, tp=2) as lab:
        seen = play(lab, truth, tmp_path, HSOPS_LAB_IMITATE=imitate)

    assert faults(seen) == []
    with capsys.disabled():
        print(f"\n  SGLang {sglang}, {seen.strategy}: largest relative error {max(seen.errors.values()):.2e}", end="")


def test_method_hook_captures_the_same(truth: Truth, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file of SGLang is touched, not even while it is deployed; the other release: ``make matrix``."""
    with practice(tmp_path, sglang="0.5.23", tp=2) as lab:
        untouched = tree(lab)
        lab.change("patches", "hs-dump", method="hook")
        lab.do("deploy", "--yes")
        deployed, status = tree(lab), lab.do("deploy", "--status")["patches"][0]
        lab.do("deploy", "--revert", "--yes")
        left = list((lab.home / "state/hook").iterdir())

        seen = play(lab, truth, tmp_path)

    assert deployed == untouched and status["state"] == "applied" and not left
    assert faults(seen) == []
    with capsys.disabled():
        print(
            f"\n  hook, SGLang 0.5.23, {seen.strategy}: largest relative error {max(seen.errors.values()):.2e}", end=""
        )


def test_a_naive_capture_is_caught(truth: Truth, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So the tests above can fail. The last state is right even then: a check of it alone would see nothing.

    Another kind, on other releases: ``make matrix``.
    """
    with practice(tmp_path, sglang="0.5.9", tp=2) as lab:
        seen = play_naive(lab, truth, tmp_path, naive.PLAIN_ADD, "deferred-allreduce")

    assert min(seen.errors[str(k)] for k in BOUNDARIES) > OFF_BY_ONE, seen
    assert seen.errors["final"] <= LIMIT
    assert not seen.ranks_equal
    with capsys.disabled():
        told = ", ".join(f"{name} {error:.2e}" for name, error in seen.errors.items())
        print(f"\n  plain sum where all-reduces are deferred: {told}", end="")
