"""docs/reference/hangs.json and the page made of it: what a diagnosis said of each state of a real server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.hangs.cases import FINE
from tests.measured import Measured

HEAD = """\
# Live hangs, and what `hsops diagnose` says of them

Written by `make hangs`; do not edit. Real SGLang 0.5.9 in the lab, looked at over SSH by `hsops diagnose` alone. One
server goes through several states: on order a process does something at a place of SGLang's own code, in its main
thread, until it is told to go on; then the server must be healthy again before the next one. Places: `distributed`,
`weights`, `kv-cache`, `http`, `warm-up` are steps of the start; `forward` is the model's forward pass, `loop` the
scheduler's loop, `request` the main process where it takes a request. Deeds: `spin` burns a core, `lock` waits for one
that nobody frees, `pipe` writes into a pipe that nobody reads, `fifo` reads a file that gives nothing, `receive` waits
in an operation that no peer joins, `trickle` reads slowly all the time, which is no hang. `watch` spins while
`hsops diagnose --watch` is there, which looks by itself. Who looks at `-untraced` ones has no right to trace: neither
py-spy nor strace work, the ranks write their stacks themselves.

Every two seconds somebody looks, until the verdict is neither "on its way" nor `unknown`: that one stands here. On the
way up it comes when the log has been silent for twice what a good run took for the step, 20 s at least. A batch of a
server that serves is given 20 s without a sign of work too; `forward` with less was seen before that rule. It is right
when its class is one that fits the state and it names the rank, where one is to blame. *after* is the time from when
the state was there until the verdict, *took* the last look's on the host, in seconds; *load* the machine's load then,
on {cores} cores that the ranks share.
"""


def record(tp: int, name: str, seen: Mapping[str, Any]) -> None:
    """Put a result in its place and renew the page. ``name``: of a case, or of a session for its healthy looks."""
    with MEASURED.change() as data:
        data.setdefault(str(tp), {})[name] = dict(seen)


def page(data: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The page."""
    cores = {str(seen["cores"]) for found in data.values() for seen in found.values() if "cores" in seen}
    parts = [HEAD.format(cores=" or ".join(sorted(cores)) or "?")]
    for tp in sorted(data, key=int):
        parts += ["", f"## TP {tp}", "", *_summary(data[tp]), "", *_hangs(data[tp]), "", *_fine(data[tp])]
    return "\n".join(parts) + "\n"


def _summary(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    bad = [seen for seen in found.values() if seen.get("kind") == "hang"]
    right = sum(1 for seen in bad if seen["right"])
    looks = [one for seen in found.values() for one in seen.get("looks", ())]
    alarms = sum(1 for one in looks if one["class"] not in FINE)
    took = sorted(seen["took_s"] for seen in [*bad, *looks])
    left = sum(len(seen.get("left", ())) for seen in [*bad, *looks])
    share = f" ({100 * right / len(bad):.0f} %)" if bad else ""
    yield f"{len(bad)} hangs and deaths: {right} right{share}. Looks at servers that are well: {len(looks)}, of which"
    yield f"{alarms} false alarms."
    if took:
        yield f"A look took {took[len(took) // 2]:.1f} s in the median, {took[-1]:.1f} s at most."
        yield f"Threads left traced or stopped: {left}."
    for name, seen in found.items():
        if "rates" in seen:
            before, during, after = seen["rates"]
            yield (
                f"A busy server (`{name}`) answered {before:.2f} requests a second before a diagnosis, {during:.2f} "
                f"while three ran one after another, {after:.2f} afterwards."
            )
    yield from _quiet(found)


def _quiet(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What a look takes where nothing else runs: ``make hangs SESSIONS=quiet TP=8``."""
    hung = [seen for name, seen in found.items() if name.endswith("-quiet")]
    for kind, looks in (("at the healthy server", found.get("quiet", {}).get("looks", ())), ("at a hang", hung)):
        if took := sorted(one["took_s"] for one in looks):
            yield (
                f"With nothing beside the server (`make hangs SESSIONS=quiet`), {_looks(len(took))} {kind} took "
                f"{took[len(took) // 2]:.1f} s in the median, {took[-1]:.1f} s at most, at load "
                f"{max(one['load'] for one in looks):.0f}."
            )


def _looks(count: int) -> str:
    return "one look" if count == 1 else f"{count} looks"


def _hangs(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| state | verdict | rank | confidence | right | after | took | load |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, seen in found.items():
        if seen.get("kind") == "hang":
            rank = "" if seen["rank"] is None else f"TP{seen['rank']}"
            right = "yes" if seen["right"] else f"no: {seen['wanted']}"
            row = (name, f"`{seen['class']}`", rank, seen["confidence"], right)
            row = (*row, seen["after_s"], seen["took_s"], seen["load"])
            yield f"| {' | '.join(map(str, row))} |"


def _fine(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| servers that are well | looks | verdicts |"
    yield "|---|---|---|"
    for name, seen in found.items():
        if seen.get("looks"):
            kinds = sorted({one["class"] for one in seen["looks"]})
            counts = (f"{sum(one['class'] == kind for one in seen['looks'])} `{kind}`" for kind in kinds)
            yield f"| {name} | {len(seen['looks'])} | {', '.join(counts)} |"


MEASURED = Measured("hangs", page)
