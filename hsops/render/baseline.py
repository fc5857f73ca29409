"""Baselines, and a run beside one, as lines for people and JSON values."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hsops.core.baseline import Baseline, GoodRun
from hsops.core.divergence import MISSING, NEW, Divergence
from hsops.core.log_summary import LogSummary
from hsops.core.milestone_table import MILESTONES
from hsops.core.runs import Run
from hsops.core.units import clock


def list_data(baseline: Baseline) -> list[dict[str, Any]]:
    """One entry a key, the newest first."""
    found = []
    for key in baseline.keys:
        runs = [run for run in baseline.runs if run.key == key]
        was = asdict(runs[0].launched) if runs[0].launched else {"sglang": runs[0].sglang}
        one = Baseline(baseline.server, tuple(runs))
        newest = runs[0].recorded
        found.append(
            {"key": key, **was, "runs": len(runs), "lines": one.lines, "seconds": one.seconds, "newest": newest}
        )
    return found


def list_lines(baseline: Baseline) -> Iterator[str]:
    """One line a key."""
    if not baseline.runs:
        yield f"no good run of {baseline.server} is known   hsops launch --wait-healthy records one"
    for one in list_data(baseline):
        patches = ", ".join(f"{name} {identity}" for name, identity in one.get("patches", {}).items()) or "no patch"
        what = f"TP {one['tp']}  {one['model']}  {patches}" if "tp" in one else "recorded by an older hsops"
        yield (
            f"{one['key'] or '-':8}  SGLang {one['sglang'] or 'unknown'}  {what}  {_runs(one['runs'])}  "
            f"{_range(one['lines'])} lines  healthy after {clock(one['seconds'])}  {_day(one['newest'])}"
        )


def show_data(baseline: Baseline) -> dict[str, Any]:
    """What was launched, and each run without its templates."""
    runs = [
        {name: value for name, value in asdict(run).items() if name not in ("kinds", "launched")}
        for run in baseline.runs
    ]
    was = baseline.runs[0].launched
    return {
        "server": baseline.server,
        "key": baseline.runs[0].key,
        "launched": asdict(was) if was else None,
        "runs": runs,
    }


def show_lines(baseline: Baseline) -> Iterator[str]:
    """What was launched, then a milestone a line."""
    newest = baseline.runs[0]
    yield f"{baseline.server} · baseline {newest.key or '-'} · {_runs(len(baseline.runs))}, the newest {newest.run}"
    if was := newest.launched:
        yield f"  SGLang {was.sglang or 'unknown'} · TP {was.tp} · {was.model}"
        for name, identity in was.patches.items():
            yield f"  patch {name} {identity}"
        yield f"  {' '.join(was.flags)}"
    yield f"  {'milestone':18} {'lines':>9} {'usual':>7}"
    for milestone in MILESTONES:
        lines, seconds = baseline.lines_at(milestone.id), baseline.seconds_to(milestone.id)
        if lines and seconds is not None:
            yield f"  {milestone.id:18} {_range(lines):>9} {clock(seconds):>7}"
    yield f"  {'healthy':18} {_range(baseline.lines):>9} {clock(baseline.seconds or 0.0):>7}"


def compare_lines(
    run: Run, summary: LogSummary, good: Sequence[GoodRun], differs: Sequence[str], told: Sequence[Divergence]
) -> Iterator[str]:
    """Each rank's first difference, in the order of the log."""
    lines = summary.lines - summary.probe_lines
    usual = _range(Baseline(run.server, tuple(good)).lines)
    yield f"{run.id} · {lines} lines, in '{summary.stage}' · beside {_runs(len(good))} of {good[0].key}, {usual} lines"
    for one in differs:
        yield f"  launched otherwise: the good runs {one if one.startswith('with') else 'had ' + one}"
    if not told:
        yield "  every rank said what it says in good runs, and nothing else"
    for found in sorted(told, key=lambda one: one.line):
        yield from _difference(found)


def _difference(found: Divergence) -> Iterator[str]:
    who, text = found.rank or "main", found.text
    if found.what == NEW:
        yield f"  {who:5} line {found.line}, new: {text}"
    else:
        how = "went on without" if found.what == MISSING else "the last; next would be"
        yield f"  {who:5} line {found.line}, {how}: {text}   (line {found.good_line} there)"
    if found.after:
        yield f"        after: {found.after}"


def _runs(count: int) -> str:
    return f"{count} good run{'' if count == 1 else 's'}"


def _range(lines: tuple[int, int] | None) -> str:
    return "?" if lines is None else str(lines[0]) if lines[0] == lines[1] else f"{lines[0]}-{lines[1]}"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
