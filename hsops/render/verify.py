"""What a verify found, for people and machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from hsops.core.units import size
from hsops.render.console import Outcome
from hsops.verify.verify import Verified

SHOWN = 40


def outcome(verified: Verified, *, folder: str) -> Outcome:
    """Exit 1 when anything is wrong."""
    errors = tuple({"type": "Finding", **asdict(f), "message": f"{f.file}: {f.reason}"} for f in verified.findings)
    return Outcome({"folder": folder, **asdict(verified)}, list(lines(verified)), 1 if errors else 0, errors)


def lines(verified: Verified) -> Iterator[str]:
    """A table of faults and the sums."""
    shown = verified.findings[:SHOWN]
    widths = (max((len(f.file) for f in shown), default=0), max((len(f.code) for f in shown), default=0))
    for finding in shown:
        yield f"{finding.file:<{widths[0]}}  {finding.code:<{widths[1]}}  {finding.reason}"
    if len(verified.findings) > SHOWN:
        yield f"and {len(verified.findings) - SHOWN:,} more (--json has all)"
    rate = f" ({size(verified.bytes / verified.seconds)}/s)" if verified.seconds else ""
    compared = f" · {verified.compared:,} held against their prompts" if verified.compared else ""
    failed = f" · {verified.failed:,} failed on the host and have no dump" if verified.failed else ""
    yield (
        f"{verified.samples:,} samples · {verified.tokens:,} tokens · {size(verified.bytes)} · "
        f"{len(verified.findings):,} faults · {verified.seconds:.1f} s{rate}{compared}{failed}"
    )
    if any(f.code in ("missing", "size", "checksum", "part") for f in verified.findings):
        yield "next: hsops fetch brings what is missing or damaged here again"
