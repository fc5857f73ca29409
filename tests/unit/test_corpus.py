"""The public reports of ``tests/cases/corpus``: how often the rules are right, and never a false alarm."""

from __future__ import annotations

from typing import Any

import pytest

from hsops.diagnose import judge
from tests import corpus, diagnose_cases

VIEWS = corpus.views()


@pytest.mark.parametrize("view", VIEWS)
def test_wrong_verdicts_are_rare(view: str) -> None:
    """At most 2 in 100: what the evidence does not carry is left open."""
    count = corpus.counts(VIEWS[view])

    assert count["wrong"] <= 0.02 * count["reports"]


@pytest.mark.parametrize("view", VIEWS)
def test_what_works_is_never_called_hung(view: str) -> None:
    """None of the reports of a server that was well, or only slow."""
    assert corpus.counts(VIEWS[view])["false_alarms"] == 0


@pytest.mark.parametrize("view", list(VIEWS)[1:])
def test_verdicts_are_right(view: str) -> None:
    """19 of 20, where to abstain is right only on reports that found no cause themselves."""
    count = corpus.counts(VIEWS[view])

    assert count["right"] + count["abstained"] >= 0.95 * count["reports"]


@pytest.mark.parametrize("case", corpus.others(), ids=lambda case: case["id"])
def test_reports_beside_the_corpus(case: dict[str, Any]) -> None:
    """Words of other threads: the class, or it among the alternatives."""
    verdict = judge(diagnose_cases.evidence(case))

    assert case["class"] in (verdict.name, *verdict.alternatives)


def test_the_page_is_the_result() -> None:
    """docs/reference/diagnosis.md and .json are what ``make corpus`` writes now."""
    text, data = corpus.page()

    assert corpus.PAGE.with_suffix(".md").read_text() == text
    assert corpus.PAGE.with_suffix(".json").read_text() == data
