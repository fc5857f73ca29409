"""What an extract did, for people and machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from hsops.core.units import size
from hsops.extract.extract import Extracted
from hsops.render.console import Outcome
from hsops.render.progress import clock

SHOWN = 10


def outcome(extracted: Extracted, *, server: str, host: str) -> Outcome:
    """Exit 3 when a prompt has no dump."""
    errors = tuple({"type": "Failure", **asdict(f), "message": f"{f.id}: {f.reason}"} for f in extracted.failures)
    data = {"server": server, "host": host, **asdict(extracted)}
    return Outcome(data, list(lines(extracted)), 3 if errors else 0, errors)


def lines(extracted: Extracted) -> Iterator[str]:
    """The report."""
    sums = f"{extracted.tokens:,} tokens · {size(extracted.bytes)}"
    if extracted.already == extracted.prompts:
        yield f"{extracted.already:,} of {extracted.prompts:,} done already · {sums} · next: hsops fetch"
        return
    already = f" · {extracted.already:,} were done already" if extracted.already else ""
    errors = f"{len(extracted.failures)} errors"
    yield f"{extracted.samples:,} samples · {sums} · {errors} · {clock(extracted.seconds)}{already}"
    for failure in extracted.failures[:SHOWN]:
        yield f"  {failure.id} (line {failure.line}, sent {failure.attempts} times)  {failure.reason}"
    if len(extracted.failures) > SHOWN:
        yield f"  and {len(extracted.failures) - SHOWN} more (--json has all)"
    yield "next: hsops fetch" if not extracted.failures else "next: the same line again tries what is missing"
