"""Every release of SGLang that starts on the lab, held against the reference: ``make matrix``.

Results go to docs/reference/matrix.json and .md, whatever they are. One release: ``make matrix VERSIONS=0.5.9``; to go
on after an interruption: ``make matrix RESUME=1`` leaves out what was measured with the payload as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hsops.core.inventory import HsDumpPatch
from hsops.deploy.payload import build
from tests.e2e.practice import MINUTES, practice
from tests.fidelity import naive
from tests.fidelity.round import BOUNDARIES, FINAL, OFF_BY_ONE, faults, play, play_naive
from tests.fidelity.truth import Truth
from tests.matrix import results

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(20 * MINUTES)]

RELEASES = [f"0.5.{n}" for n in range(4, 24)]
KINDS = {
    "plain": (RELEASES, 2, "deepseek", ""),
    "TP 1": (["0.5.9", "0.5.23"], 1, "deepseek", ""),
    "method: hook": (["0.5.6", "0.5.9", "0.5.23"], 2, "deepseek", ""),
    "Kimi-K2.5": (["0.5.9", "0.5.23"], 2, "kimi", ""),
    "GPU faults imitated": (
        ["0.5.6", "0.5.9", "0.5.13", "0.5.14", "0.5.20", "0.5.21", "0.5.23"],
        2,
        "deepseek",
        "in-place-norms,deferred-allreduce",
    ),
}
ROUNDS = [(section, sglang) for section, (versions, *_) in KINDS.items() for sglang in versions]
# From 0.5.14 on SGLang copies what it captures, and from 0.5.21 on there is no residual in the loop to add
NAIVE = [
    (naive.PLAIN_ADD, "deferred-allreduce", "0.5.9"),
    (naive.PLAIN_ADD, "deferred-allreduce", "0.5.20"),
    (naive.NO_CLONE, "in-place-norms", "0.5.9"),
]


@pytest.mark.parametrize("section, sglang", ROUNDS)
def test_release(section: str, sglang: str, truth: Truth, tmp_path: Path) -> None:
    """All states right, ranks equal, the revert whole."""
    _, tp, model, imitate = KINDS[section]
    skip_measured(section, sglang)
    with told(section, sglang), practice(tmp_path, sglang=sglang, tp=tp, model=model) as lab:
        if section == "method: hook":
            lab.change("patches", "hs-dump", method="hook")
        seen = play(lab, truth, tmp_path, HSOPS_LAB_IMITATE=imitate)
        results.record(section, sglang, seen)

    assert faults(seen) == []


@pytest.mark.parametrize("kind, imitate, sglang", NAIVE)
def test_naive(kind: str, imitate: str, sglang: str, truth: Truth, tmp_path: Path) -> None:
    """Wrong at every boundary, right at the end."""
    with practice(tmp_path, sglang=sglang, tp=2) as lab:
        seen = play_naive(lab, truth, tmp_path, kind, imitate)
        results.record(f"naive {kind}", sglang, seen)

    assert min(seen.errors[str(k)] for k in BOUNDARIES) > OFF_BY_ONE


@contextmanager
def told(section: str, sglang: str) -> Iterator[None]:
    """A round that comes to no end is a result too."""
    try:
        yield
    except Exception as error:
        results.record(section, sglang, " ".join(str(error).split())[-300:])
        raise


def skip_measured(section: str, sglang: str) -> None:
    """With RESUME=1 what was measured with this very payload and these options is not measured again."""
    if os.environ.get("RESUME") == "1":
        wanted = build(HsDumpPatch(name="hs-dump", boundaries=BOUNDARIES, final=FINAL)).identity
        if results.MEASURED.read().get(section, {}).get(sglang, {}).get("patch") == wanted:
            pytest.skip(f"measured with {wanted}")
