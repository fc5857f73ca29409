"""The milestone x rank matrix of a launch. Pure."""

from __future__ import annotations

from hsops.core.milestone_table import BY_ID, MILESTONES, ONCE, STAGES, stage_end
from hsops.launch.events import Matrix, Row
from hsops.launch.explain import doing
from hsops.launch.watch import Watch

DONE, BEGUN, DUE, NOBODY = "+", "~", ".", ""
_TITLES = {"http": "http server", "warm-up": "warm-up, healthy", "graphs": "cuda graphs"}


def matrix(watch: Watch, *, now: float) -> Matrix:
    """The picture as it is.

    Args:
        now: seconds of the watcher's clock.
    """
    summary = watch.summary
    stages = [s for s in STAGES if s != "graphs" or summary.graphs_expected or "graphs-begin" in summary.reached]
    return Matrix(
        ranks=summary.ranks,
        rows=tuple(_row(watch, stage) for stage in stages),
        lines=summary.lines,
        health=watch.ladder.level,
        elapsed_s=watch.elapsed_s,
        remaining_s=watch.remaining_s,
        silent_s=watch.signs.silent_s(now),
        doing=doing(watch, now=now),
    )


def _row(watch: Watch, stage: str) -> Row:
    end = stage_end(stage)
    steps = [m.id for m in MILESTONES if m.stage == stage]
    if end.scope == ONCE:
        begun = any(step in watch.summary.reached for step in steps)
        cells = (DONE if watch.summary.complete(end) else BEGUN if begun else DUE, *[NOBODY] * (watch.summary.tp - 1))
    else:
        cells = tuple(_cell(watch, end.id, steps, rank) for rank in watch.summary.ranks)
    took = watch.seconds_at(end.id) if watch.summary.complete(end) else None
    return Row(_TITLES.get(stage, stage), cells, took, watch.baseline.seconds_to(end.id), _note(watch, stage))


def _cell(watch: Watch, end: str, steps: list[str], rank: str) -> str:
    reached = watch.summary.reached
    if rank in reached.get(end, {}):
        return DONE
    return BEGUN if any(rank in reached.get(step, {}) for step in steps if BY_ID[step].scope != ONCE) else DUE


def _note(watch: Watch, stage: str) -> str:
    """A bar under way, or the ranks that are behind."""
    if watch.summary.stage != stage:
        return ""
    bars = [b for b in watch.summary.bars.values() if b.percent < 100]
    upcoming = watch.summary.next
    behind = watch.summary.missing(upcoming) if upcoming else ()
    if bars:
        return f"{bars[-1].percent} %"
    some = behind and len(behind) < watch.summary.tp
    return f"waiting for {', '.join(map(watch.run.named, behind))}" if some else ""
