"""The public reports of ``tests/cases/corpus`` against the rules: what was found, by family.

    python -m tests.corpus            the table
    python -m tests.corpus --page     writes docs/reference/diagnosis.md and diagnosis.json

A report is ``id`` (its public address), ``class``, ``sure`` (of that class: high, medium, low), and a log as ``--log``
gets it, or what its reporter saw, in the form of ``tests.diagnose_cases``; a report with both has the rest in ``seen``.
``aside``: every fourth, counted by itself too; ``why``: what keeps a report open.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hsops.diagnose import Verdict, judge
from hsops.diagnose.taxonomy import family_of
from tests import diagnose_cases

FOLDER = diagnose_cases.CASES / "corpus"
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "diagnosis"
CLASS, FAMILY, UNKNOWN, WRONG = "class", "family", "unknown", "wrong"


@dataclass(frozen=True, slots=True)
class Result:
    """One report and its verdict. ``outcome``: the class, the family with the class among the first two, or not."""

    case: dict[str, Any]
    verdict: Verdict

    @property
    def outcome(self) -> str:
        """``class``, ``family``, ``unknown`` or ``wrong``."""
        wanted, found = self.case["class"], self.verdict
        if found.name == wanted:
            return CLASS
        if found.name == UNKNOWN:
            return UNKNOWN
        close = found.family == family_of(wanted) and wanted in found.alternatives[:1]
        return FAMILY if close else WRONG

    @property
    def right(self) -> bool:
        """As the goal counts it."""
        return self.outcome in (CLASS, FAMILY)


def cases() -> Iterator[dict[str, Any]]:
    """All reports."""
    for path in sorted(FOLDER.glob("*.yaml")):
        yield from yaml.safe_load(path.read_text())


def others() -> list[dict[str, Any]]:
    """Reports that are not of the corpus, found when its rules stood: a log each."""
    found: list[dict[str, Any]] = yaml.safe_load((diagnose_cases.CASES / "others.yaml").read_text())
    return found


def results(*, seen: bool = False) -> list[Result]:
    """Every report judged: by its log where it has one, or with ``seen`` by all that its reporter saw."""
    return [Result(case, judge(diagnose_cases.evidence(_what(case, seen)))) for case in cases()]


def _what(case: dict[str, Any], seen: bool) -> dict[str, Any]:
    return (
        {**case, **case["seen"], "log": ""} | {"log": case["seen"].get("log", "")} if seen and "seen" in case else case
    )


def table(found: Sequence[Result]) -> list[tuple[str, int, int, int, int, int]]:
    """Rows: family, reports, then how many of each outcome; the last row is the sum."""
    families = sorted({family_of(result.case["class"]) for result in found})
    rows = [_row(name, [r for r in found if family_of(r.case["class"]) == name]) for name in families]
    return [*rows, _row("all", found)]


def _row(name: str, found: Sequence[Result]) -> tuple[str, int, int, int, int, int]:
    count = Counter(result.outcome for result in found)
    return name, len(found), count[CLASS], count[FAMILY], count[UNKNOWN], count[WRONG]


def counts(found: Sequence[Result]) -> dict[str, int]:
    """The whole, by what the goal asks for. ``abstained``: unknown where the cause was never found, which is right."""
    return {
        "reports": len(found),
        "right": sum(r.right for r in found),
        "class": sum(r.outcome == CLASS for r in found),
        "abstained": sum(r.outcome == UNKNOWN and r.case["sure"] == "low" for r in found),
        "unknown": sum(r.outcome == UNKNOWN for r in found),
        "wrong": sum(r.outcome == WRONG for r in found),
        "false_alarms": sum(r.verdict.hung and family_of(r.case["class"]).startswith("negative-") for r in found),
    }


def views() -> dict[str, list[Result]]:
    """The corpus as it is counted: by the log alone where there is one, by all that was seen, and what was aside."""
    log, seen = results(), results(seen=True)
    return {
        "by the log where there is one": log,
        "by all that the reporter saw": seen,
        "of those, every fourth": [r for r in seen if r.case.get("aside")],
    }


def page() -> tuple[str, str]:
    """The page and its data."""
    found = views()
    rows = ["| | " + " | ".join(_HEAD) + " |", "|---|" + "---:|" * len(_HEAD)]
    for name, part in found.items():
        rows.append(f"| {name} | " + " | ".join(str(n) for n in counts(part).values()) + " |")
    families = ["| family | reports | class | family | unknown | wrong |", "|---|---:|---:|---:|---:|---:|"]
    for name, *figures in table(found["by all that the reporter saw"]):
        families.append(f"| {name} | " + " | ".join(map(str, figures)) + " |")
    missed = [f"| `{r.case['class']}` | `{r.verdict.name}` | {r.case['sure']} | {r.case['id']} | {r.case['why']} |"
              for r in found["by all that the reporter saw"] if not r.right]  # fmt: skip
    data = {name: {"counts": counts(part), "families": table(part)} for name, part in found.items()}
    text = _PAGE.format(counts="\n".join(rows), families="\n".join(families), missed="\n".join(missed))
    return text, json.dumps(data, indent=1) + "\n"


_HEAD = ("reports", "right", "class", "unknown, cause never found", "unknown", "wrong", "false alarms")
_PAGE = """# How often a diagnosis is right

{counts}

105 public reports of launches of SGLang and vLLM that hung, died or only looked hung, against the rules as they are;
`make corpus` renews this page. *Right*: the class, or the family with the class as first alternative. *Unknown, cause
never found*: the report itself found none, so to abstain is right. *False alarms*: servers that work or are slow, and
were called hung. A log of a report is often a line or two: what the line leaves open, hsops leaves open.

## By family, from all that the reporter saw

{families}

## Not right

| report's class | verdict | how sure the report was | report | why |
|---|---|---|---|---|
{missed}
"""


def main(words: Sequence[str]) -> None:
    """The command."""
    if "--page" in words:
        for suffix, text in zip((".md", ".json"), page(), strict=True):
            PAGE.with_suffix(suffix).write_text(text)
        return
    for title, found in views().items():
        print(f"\n{title}\n{'family':26} reports class family unknown wrong")
        for name, total, *figures in table(found):
            print(f"{name:26} {total:7} " + " ".join(f"{n:6}" for n in figures))
        for result in found:
            if not result.right or "-v" in words:
                mark = "aside " if result.case.get("aside") else ""
                print(f"  {result.outcome:8} {result.case['class']:32} {mark}{result.case['sure']:7}"
                      f"{result.verdict.name:30} {result.verdict.confidence:7} {result.case['id'][:60]}")  # fmt: skip
        print(counts(found))


if __name__ == "__main__":
    main(sys.argv[1:])
