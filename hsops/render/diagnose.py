"""A verdict for people: one headline, one sentence, then the evidence by source, then what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from hsops.diagnose.verdict import Verdict
from hsops.render.paint import columns

_LABEL = 10
_WIDTH = 116


def lines(verdict: Verdict, took_s: float | None = None) -> Iterator[str]:
    """The whole verdict, plain text.

    Args:
        took_s: seconds that looking took; None leaves it out.
    """
    took = f"   {took_s:.1f} s" if took_s is not None else ""
    where = f"   {verdict.host}" if verdict.host else ""
    rank = f"   TP{verdict.rank}" if verdict.rank is not None else ""
    yield f"{verdict.word}  {verdict.name}   confidence {verdict.confidence}{where}{rank}{took}"
    yield from wrapped("  ", verdict.summary)
    for finding in verdict.evidence:
        yield from row(finding.source, finding.text)
    if verdict.remedy:
        yield from row("try", verdict.remedy)
    if verdict.next_probe:
        yield from row("look", verdict.next_probe)
    if verdict.alternatives:
        yield from row("or", ", ".join(verdict.alternatives))


def row(label: str, text: str) -> Iterator[str]:
    """A label and its text."""
    yield from wrapped(f"  {label:<{_LABEL}} ", text)


def wrapped(first: str, text: str) -> Iterator[str]:
    """``text`` in a terminal's width, indented as ``first`` is long."""
    yield from textwrap.wrap(
        text, columns(_WIDTH), initial_indent=first, subsequent_indent=" " * len(first), break_on_hyphens=False
    )
