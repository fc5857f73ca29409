"""docs/reference/supervision.json and the page made of it: a real SGLang started, cut off and stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from tests.measured import Measured

HEAD = """\
# Started, cut off, stopped: supervision of a real SGLang

Written by `make tp8`, `make busy`, `make cut` and `make cycles`; do not edit. Real SGLang 0.5.9 in the lab, on the CPU,
over SSH.
*load* is the machine's at the end.
"""
CUTS = """\
## Cut off

`hsops launch --wait-healthy` and `hsops logs -f` are at work while that happens to their link, or to them. Afterwards
the launch must say that the server is healthy, and what `logs -f` printed until the server was stopped must be the
server's log, byte for byte, by SHA-256. Requests go on meanwhile, so that the log grows while nobody can read it.

| what | when | away | log while away | log in all | equal | server | load |
|---|---|---|---|---|---|---|---|"""
CYCLES = """\
## Over and over

`hsops launch --wait-healthy` and `hsops stop`, again and again. After each: no process of the run by whatever sign, its
port free, nothing new in /dev/shm, no lock held. A decoy outside the run, with the same command line, interpreter and
titles, lives on through all of them. Each cycle is a whole start of a real SGLang with the lab's model (6 layers,
random weights), from nothing to three good answers, on the same port, and its end."""


def record(section: str, name: str, seen: Mapping[str, Any]) -> None:
    """Put a result in its place and renew the page."""
    told = {**seen, "load": round(os.getloadavg()[0], 1), "day": time.strftime("%Y-%m-%d"), "cores": os.cpu_count()}
    with MEASURED.change() as data:
        data.setdefault(section, {})[name] = told


def page(data: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The page."""
    lines = [HEAD]
    for section, part in PARTS.items():
        if section in data:
            lines += [*part(list(data[section].items())), ""]
    return "\n".join(lines)


Rows = Sequence[tuple[str, Mapping[str, Any]]]


def _tp8(rows: Rows) -> Iterator[str]:
    yield "## Eight ranks"
    yield ""
    for _, one in rows:
        yield (
            f"`hsops lab up --tp 8`, `hsops launch --wait-healthy`, on {one['cores']} cores: healthy after "
            f"{one['healthy_s']:.0f} s, {one['ranks']} ranks through every milestone and capturing; `hsops stop` took "
            f"{one['stop_s']} s for {one['processes']} processes, none left, port free, {one['segments_left']} "
            f"segments left in /dev/shm ({one['day']}, load {one['load']})."
        )


def _busy(rows: Rows) -> Iterator[str]:
    yield "## A full queue"
    yield ""
    for _, one in rows:
        yield (
            f"{one['askers']} clients ask a server that runs four requests at a time. `hsops status`: {one['before']} "
            f"before, busy ({one['level']}) meanwhile: {one['said']}; {one['after']} after ({one['day']}, load "
            f"{one['load']})."
        )


def _cuts(rows: Rows) -> Iterator[str]:
    yield CUTS
    for what, one in rows:
        yield (
            f"| {what} | {one['when']} | {one['away_s']:.0f} s | {one['while_away']} B | {one['log']} B "
            f"| {'yes' if one['equal'] else 'NO'} | {one['server']} | {one['load']} |"
        )


def _cycles(rows: Rows) -> Iterator[str]:
    yield CYCLES
    yield ""
    seen = [one for _, one in rows]
    bad = [f"{number}: {one['left']}" for number, one in rows if one["left"]]
    launches, stops = ([one[key] for one in seen] for key in ("launch_s", "stop_s"))
    alive = sum(one["decoy"] for one in seen)
    ranks = ", ".join(f"{sum(one.get('tp', 2) == tp for one in seen)} of TP {tp}" for tp in (2, 1))
    told = f"launch {median(launches):.0f}, {max(launches):.0f}; stop {median(stops):.1f}, {max(stops):.1f}"
    yield (
        f"{len(seen)} cycles ({ranks}) of the hundred asked for, {len(bad)} with something left, the decoy alive after "
        f"{alive}. Seconds, median and longest: {told}."
    )
    yield from (f"- {line}" for line in bad)


PARTS: Mapping[str, Callable[[Rows], Iterator[str]]] = {
    "tp8": _tp8,
    "busy": _busy,
    "cuts": _cuts,
    "cycles": _cycles,
}
MEASURED = Measured("supervision", page)
