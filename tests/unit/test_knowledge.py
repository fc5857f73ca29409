"""What ``hsops explain`` knows: of every class, in words that hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hsops.core.errors import UsageError
from hsops.diagnose import judge
from hsops.diagnose.knowledge import about
from hsops.diagnose.knowledge_host import HOST
from hsops.diagnose.knowledge_run import RUN
from hsops.diagnose.signature_table import SIGNATURES
from hsops.diagnose.signatures import DIED, WARMUP_FAILED
from hsops.diagnose.taxonomy import FAMILIES, MOVING
from hsops.render.explain import lines
from tests import corpus, diagnose_cases

CLASSES = [name for family in FAMILIES.values() for name in family]
COMMANDS = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()


def test_every_class_is_known_once() -> None:
    """In one of the two halves, and no other."""
    assert sorted([*HOST, *RUN]) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_explained(name: str) -> None:
    """What it means, what to do, what would confirm it, whether it hangs."""
    known = about(name)
    text = "\n".join(lines(known))

    assert known.remedy and known.confirm and known.meaning in re.sub(r"\s+", " ", text)
    assert (known.word in ("OK", "WAIT")) == (name in MOVING)


def test_a_name_that_is_none_is_told_with_the_nearest() -> None:
    """As the command line shows it."""
    with pytest.raises(UsageError) as caught:
        about("nccl-p2p-hangs")

    assert "nccl-p2p-hang?" in caught.value.fix


@pytest.mark.parametrize("name", CLASSES)
def test_commands_that_are_advised_exist(name: str) -> None:
    """Each ``hsops ...`` of a remedy, with its options."""
    known = about(name)
    for text in (known.remedy, known.confirm, *(row.remedy for row in known.signatures)):
        for command, options in re.findall(r"hsops (\w+)((?: --[\w-]+)*)", text):
            section = COMMANDS.split(f"## `hsops {command}`", 1)[1].split("\n## ", 1)[0]
            assert [option for option in options.split() if f"`{option}" not in section] == []


def test_signatures_name_classes_and_sources() -> None:
    """Every row has where it was seen, and what says the same is a class too."""
    for row in SIGNATURES:
        assert row.name in CLASSES and row.source and row.remedy
        assert set(row.likes) <= set(CLASSES) and row.name not in row.likes


def test_words_of_sglang_tell_of_which_releases() -> None:
    """``tests/matrix/test_signatures.py`` holds them against the wheels."""
    for row in (*SIGNATURES, DIED, WARMUP_FAILED):
        assert re.match(r"0\.\d+\.\d+-0\.\d+\.\d+(: .+)?\Z", row.versions) or not row.source.startswith("SGLang"), row
    assert sum(bool(row.versions) for row in SIGNATURES) >= 11


def test_alternatives_are_classes_and_not_the_verdict() -> None:
    """Over all cases and reports."""
    cases = [*map(diagnose_cases.load, diagnose_cases.names()), *corpus.cases()]
    verdicts = [judge(diagnose_cases.evidence(case)) for case in cases]

    assert {name for v in verdicts for name in v.alternatives} <= set(CLASSES)
    assert [v.name for v in verdicts if v.name in v.alternatives] == []


def test_what_is_down_or_hangs_has_a_remedy() -> None:
    """Over all cases and reports: something to type, and where it is not certain what would tell more."""
    cases = [*map(diagnose_cases.load, diagnose_cases.names()), *corpus.cases()]
    verdicts = [judge(diagnose_cases.evidence(case)) for case in cases]

    assert [v.name for v in verdicts if v.word in ("HUNG", "DOWN") and not v.remedy] == []
    assert [
        v.name for v in verdicts if v.word in ("HUNG", "DOWN") and v.confidence != "high" and not v.next_probe
    ] == []
