"""The logs of a server over several hosts, as one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from hsops.core.log_capture import CaptureLines
from hsops.core.log_lines import MAIN
from hsops.core.log_summary import LogSummary, Mark

V = TypeVar("V")


def joined(summaries: Sequence[LogSummary], hosts: Sequence[str] = ()) -> LogSummary:
    """What the logs of all nodes tell: the first one's, and of the others what their ranks say and what went wrong.

    What their main processes say beside that repeats the first one's; their HTTP servers answer nothing but /health.
    Lines are counted in the first log; those of marks and errors in the log that has them.

    Args:
        summaries: by node rank.
        hosts: of the nodes, for errors; empty for none.
    """
    head = summaries[0]
    if len(summaries) == 1 and not hosts:
        return head
    others = summaries[1:]
    found = [
        replace(error, host=host)
        for one, host in zip(summaries, hosts or [""] * len(summaries), strict=True)
        for error in one.errors
    ]
    names = dict.fromkeys(name for one in summaries for name in one.reached)
    reached = {name: {**_of_ranks(others, name), **head.reached.get(name, {})} for name in names}
    templates = {text: dict(counts) for text, counts in head.templates.items()}
    for one in others:
        for text, counts in one.templates.items():
            ranked = {rank: count for rank, count in counts.items() if rank != MAIN}
            if ranked:
                templates[text] = {**ranked, **templates.get(text, {})}
    return replace(
        head,
        bytes=sum(one.bytes for one in summaries),
        messages=sum(one.messages for one in summaries),
        reached={name: marks for name, marks in reached.items() if marks},
        rank_lines={**_ranked([one.rank_lines for one in others]), **head.rank_lines},
        templates=templates,
        kinds={**_ranked([one.kinds for one in others]), **head.kinds},
        bars={**{caption: bar for one in others for caption, bar in one.bars.items()}, **head.bars},
        errors=tuple(sorted(found, key=lambda error: error.time if error.time is not None else float("inf"))),
        tp=max(one.tp for one in summaries),
        last={**_ranked([one.last for one in others]), **head.last},
        capture=CaptureLines(
            {name: lost for one in reversed(summaries) for name, lost in one.capture.unimported.items()},
            {who: line for one in reversed(summaries) for who, line in one.capture.refusals.items()},
        ),
    )


def _of_ranks(others: Sequence[LogSummary], name: str) -> Mapping[str, Mark]:
    return _ranked([one.reached.get(name, {}) for one in others])


def _ranked(groups: Sequence[Mapping[str, V]]) -> dict[str, V]:
    return {rank: value for group in groups for rank, value in group.items() if rank != MAIN}
