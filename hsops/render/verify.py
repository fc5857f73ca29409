"""What a verify found, for people and machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from hsops.core.units import counted, size
from hsops.render.console import Outcome
from hsops.verify.norms import Norms
from hsops.verify.verify import Verified

SHOWN = 40
SHOWN_OUTLIERS = 5


def outcome(verified: Verified, *, folder: str) -> Outcome:
    """Exit 1 when anything is wrong."""
    errors = tuple({"type": "Finding", **asdict(f), "message": f"{f.file}: {f.reason}"} for f in verified.findings)
    data = {"folder": folder, **asdict(verified)}
    return Outcome(data, list(lines(verified)), 1 if errors else 0, errors, total(verified))


def lines(verified: Verified) -> Iterator[str]:
    """A table of faults and the sums."""
    shown = verified.findings[:SHOWN]
    widths = (max((len(f.file) for f in shown), default=0), max((len(f.code) for f in shown), default=0))
    for finding in shown:
        yield f"{finding.file:<{widths[0]}}  {finding.code:<{widths[1]}}  {finding.reason}"
    if len(verified.findings) > SHOWN:
        yield f"and {len(verified.findings) - SHOWN:,} more (--json has all)"
    yield total(verified)
    yield from norms(verified.norms)
    if any(f.code in ("missing", "size", "checksum", "part") for f in verified.findings):
        yield "next: hsops fetch brings what is missing or damaged here again"


def total(verified: Verified) -> str:
    """The sums."""
    rate = f" ({size(verified.bytes / verified.seconds)}/s)" if verified.seconds else ""
    compared = f" · {verified.compared:,} held against their prompts" if verified.compared else ""
    failed = f" · {verified.failed:,} failed on the host and have no dump" if verified.failed else ""
    return (
        f"{counted(verified.samples, 'sample')} · {verified.tokens:,} tokens · {size(verified.bytes)} · "
        f"{counted(len(verified.findings), 'fault')} · {verified.seconds:.1f} s{rate}{compared}{failed}"
    )


def norms(found: Sequence[Norms]) -> Iterator[str]:
    """A line a boundary, then the dumps that are unlike the others."""
    if not found:
        return
    rows = [("norms of rows", "median", "of the dumps", "longest row"), *(_row(n) for n in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for place in found:
        if place.outliers:
            named = ", ".join(f"{o.file} ({o.median:.3g})" for o in place.outliers[:SHOWN_OUTLIERS])
            more = f" and {place.unlike - SHOWN_OUTLIERS:,} more" if place.unlike > SHOWN_OUTLIERS else ""
            yield f"unlike the others at {place.where}: {named}{more}"


def _row(n: Norms) -> tuple[str, str, str, str]:
    return (
        n.where,
        f"{n.median:.3g}",
        f"{n.low:.3g} to {n.high:.3g}",
        f"{n.largest:.3g} at token {n.token} of {n.file}",
    )
