"""docs/reference/stalls.json and the page made of it: what each launch of the soak came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.measured import Measured
from tests.stalls.cases import SLOW, SLOW_S, STUCK, Case

HEAD = f"""\
# Slow is not stuck

Written by `make stalls`; do not edit. Real SGLang 0.5.9 in the lab, TP 2, each launched over SSH with
`hsops launch --wait-healthy` against the baseline of one undisturbed launch, so that a step is called stalled after the
longer of 30 s and twice what it took there. Slow launches are slowed by {SLOW_S} s without a log line and must become
healthy without a stall verdict; stuck ones hang for good and must be called stalled. The tables show those that ran.

*quiet at most* is the longest time without any sign of work that the launch reported, in seconds (it reports every
15 s). *bound* is what was allowed for that step. *verdict after* is measured by the test's own clock, from the last
milestone that the launch reported to the end of its output: what the step did before it hung, the bound, the look by
`hsops diagnose`, and the stop where one was asked for. *load* is the machine's when the launch ended.
"""


def record(case: Case, seen: Mapping[str, Any]) -> None:
    """Put a result in its place and renew the page."""
    with MEASURED.change() as data:
        data[case.id] = dict(seen)


def page(data: Mapping[str, Mapping[str, Any]]) -> str:
    """The page."""
    return "\n".join([HEAD, *_slow(data), "", *_stuck(data)]) + "\n"


def _slow(data: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = [(case, data[case.id]) for case in SLOW if case.id in data]
    accused = sum(1 for _, seen in rows if seen["stalls"])
    healthy = sum(1 for _, seen in rows if seen["exit"] == 0)
    yield "## Slow"
    yield ""
    yield f"{len(rows)} of {len(SLOW)} launches ran: {healthy} healthy, {accused} stall verdicts."
    yield ""
    yield "| fault | launch | exit | stall verdicts | quiet at most | bound | healthy after | load | said meanwhile |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for case, seen in rows:
        quiet = f"{seen['quiet_s']:.0f} | {seen['limit_s']:.0f}"
        yield (
            f"| {case.fault} | {case.number} | {seen['exit']} | {seen['stalls']} | {quiet} | {seen['took_s']:.0f} s "
            f"| {seen.get('load', '')} | {seen['said']} |"
        )


def _stuck(data: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = [(case, data[case.id]) for case in STUCK if case.id in data]
    told = sum(1 for _, seen in rows if seen["exit"] == 7 and seen["stalls"])
    yield "## Stuck"
    yield ""
    yield f"{len(rows)} of {len(STUCK)} launches ran: {told} stall verdicts."
    yield ""
    yield "| fault | exit | silent | bound | verdict after | verdict | rank | server left running | load |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for case, seen in rows:
        yield (
            f"| {case.fault} | {seen['exit']} | {seen['silent_s']:.1f} s | {seen['limit_s']:.1f} s "
            f"| {seen['told_s']:.0f} s | `{seen['verdict']}` | {seen['rank']} | {'yes' if seen['left'] else 'no'} "
            f"| {seen.get('load', '')} |"
        )


MEASURED = Measured("stalls", page)
