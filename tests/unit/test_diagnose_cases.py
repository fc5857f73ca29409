"""Every case of ``tests/cases/diagnose`` gets the verdict that it deserves, or none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hsops.diagnose import judge
from hsops.diagnose.bundle import unpack
from hsops.diagnose.taxonomy import FAMILIES
from tests import diagnose_cases


@pytest.mark.parametrize("name", diagnose_cases.names())
def test_case(name: str) -> None:
    """The class is the one expected, and so are rank and confidence where the case says them."""
    case = diagnose_cases.load(name)
    expect = case["expect"]

    verdict = judge(diagnose_cases.evidence(case))

    assert verdict.name in expect.get("any", [expect.get("class")]), verdict
    if "rank" in expect:
        assert verdict.rank == expect["rank"]
    if "confidence" in expect:
        assert verdict.confidence == expect["confidence"]
    assert verdict.evidence or not diagnose_cases.evidence(case).log


@pytest.mark.parametrize("name", diagnose_cases.names())
def test_what_moves_is_never_called_a_hang(name: str) -> None:
    """A case of a server that works or is on its way gets no verdict of a hang, and exit code 0 or 1."""
    case = diagnose_cases.load(name)
    if not case.get("moves"):
        return

    verdict = judge(diagnose_cases.evidence(case))

    assert not verdict.hung
    assert verdict.exit_code in (0, 1)


@pytest.mark.parametrize(
    "why,words",
    [
        ("not-found", "install py-spy on the host and run hsops diagnose again"),
        ("timed-out", "hsops diagnose again: py-spy did not get through"),
        ("failed", "hsops diagnose again: py-spy did not get through"),
    ],
)
def test_what_would_make_a_busy_wait_certain(why: str, words: str) -> None:
    """A tool that is there and did not get through on a busy machine is not to be installed."""
    case = diagnose_cases.load("seeds-hang-no-pyspy")
    case["live"]["could_not"] = {"stacks": why}

    verdict = judge(diagnose_cases.evidence(case))

    assert (verdict.name, verdict.confidence, verdict.next_probe) == ("warmup-deadlock-busy-wait", "medium", words)


@pytest.mark.parametrize(
    "name,verdict",
    [
        ("weights-repack-skew-live", ("rank-straggler-load", 0, True)),
        ("graphs-ten-minutes", ("graph-capture-hang", None, True)),
        ("weights-reading", ("loading", None, False)),
        ("jit-compilers-run", ("jit-compiling-not-hung", None, False)),
    ],
)
def test_a_watch_that_vouches_for_silence(name: str, verdict: tuple[str, int | None, bool]) -> None:
    """What is slow by benefit of the doubt is stuck once good runs vouch; what is seen to move is not, even then."""
    seen = diagnose_cases.evidence(diagnose_cases.load(name))

    found = judge(replace(seen, unmoved_s=600.0))

    assert judge(seen).moving
    assert (found.name, found.rank, found.hung) == verdict


def test_a_watch_that_allows_less_than_the_floor() -> None:
    """``launch --stall-after 11``: a hang was named only after 44 s where no good run vouched for the step."""
    case = diagnose_cases.load("warmup-spin-just-begun")
    case["live"]["silent"] = 12
    seen = diagnose_cases.evidence(case)

    assert judge(seen).name == "starting"
    assert judge(replace(seen, allowed_s=11.0)).name == "warmup-deadlock-busy-wait"


@pytest.mark.parametrize("name", [name for name in diagnose_cases.names() if diagnose_cases.load(name).get("moves")])
def test_what_is_known_to_be_slow_is_slow_however_little_a_watch_allows(name: str) -> None:
    """A short ``--stall-after`` makes nobody blind to what moves, or to what is mute for minutes when all is well."""
    seen = diagnose_cases.evidence(diagnose_cases.load(name))

    assert judge(replace(seen, allowed_s=11.0)).moving


def test_every_verdict_has_one_family() -> None:
    """No class stands in two families."""
    names = [name for family in FAMILIES.values() for name in family]

    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "name,verdict",
    [
        ("healthy", ("healthy", None, "high")),
        ("busy-wait", ("warmup-deadlock-busy-wait", None, "high")),
        ("busy-wait-warmup", ("warmup-deadlock-busy-wait", None, "high")),
        ("stopped-rank", ("rank-stopped", 1, "high")),
        ("killed-rank", ("rank-killed", 1, "high")),
    ],
)
def test_recorded_evidence(name: str, verdict: tuple[str, int | None, str]) -> None:
    """Evidence of a real SGLang 0.5.9 at TP 2, kept with --save, replays to the verdict it had."""
    data = (diagnose_cases.CASES / "diagnose" / "recorded" / f"{name}.json").read_bytes()

    found = judge(unpack(data, name=name))

    assert (found.name, found.rank, found.confidence) == verdict
