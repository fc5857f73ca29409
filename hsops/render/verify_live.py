"""What ``hsops verify --live`` found, for people and machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from hsops.render.console import Outcome
from hsops.verify.live.checks import FAIL, PASS, SKIPPED, Check
from hsops.verify.live.verify import Report


def outcome(report: Report, *, server: str, host: str) -> Outcome:
    """Exit 1 when a check failed. A skipped one is said, but a rerun would skip it again, so it is no exit 3."""
    told = [check.as_json() for check in report.checks]
    data = {"server": server, "host": host, **asdict(report), "checks": told}
    data |= {status: sum(check.status == status for check in report.checks) for status in (PASS, FAIL, SKIPPED)}
    failed = [check for check in report.checks if check.status == FAIL]
    errors = tuple(
        {"type": "Check", "message": f"{c.kind.title}: {c.reason}", "why": c.kind.means, "fix": c.kind.fix}
        for c in failed
    )
    return Outcome(data, list(lines(report, server=server, host=host)), 1 if failed else 0, errors)


def lines(report: Report, *, server: str, host: str) -> Iterator[str]:
    """A line a check, what a failure means, and the sums."""
    about = [f"{server} on {host}", f"run {report.run}", f"TP {report.tp}"]
    if report.states:
        about += [f"{', '.join(report.states)} in {report.dtype}", f"a prompt of {report.tokens:,} tokens"]
    yield " · ".join(about)
    for check in report.checks:
        yield from _check(check)
    sums = ((PASS, "passed"), (FAIL, "failed"), (SKIPPED, "skipped"))
    counts = " · ".join(f"{sum(c.status == status for c in report.checks)} {word}" for status, word in sums)
    yield f"{counts} · {report.seconds:.1f} s"


def _check(check: Check) -> Iterator[str]:
    yield f"  {check.status:8}{check.kind.title}: {check.reason}"
    for state in () if check.figures.get("equal") else check.figures.get("states", ()):
        yield f"            {_state(state)}"
    if check.status == FAIL:
        if check.threshold:
            yield f"          limit: {check.threshold}"
        yield f"          means: {check.kind.means}"
        yield f"          do: {check.kind.fix}"


def _state(state: dict[str, float]) -> str:
    where = f"TP{state['rank']} against TP0, " if "rank" in state else ""
    text = f"{where}{state['slot']}: median {state['median']:.2g} · largest {state['largest']:.2g}"
    return f"{text} · cosine >= {state['cosine']:.6f}" if "cosine" in state else text
