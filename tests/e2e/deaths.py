"""docs/reference/deaths.json and its page: a rank that dies while its server starts, and what launch said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hsops.launch.watch import DEATH_GRACE_S

FOLDER = Path(__file__).parents[2] / "docs/reference"
DATA, PAGE = FOLDER / "deaths.json", FOLDER / "deaths.md"
AT = ("arguments", "distributed-begin", "distributed", "weights-begin", "weights", "memory-pool", "http", "ready")
WAYS = {"kill": "SIGKILL", "exit": "exit 3", "raise": "exception", "oom": "OOM killer"}

HEAD = """\
# A rank dies while the server starts: how soon, and as what, it is told

Written by `make deaths`; do not edit. The lab, TP 2, a real SGLang behind sshd: TP1 dies within 10 ms of a
[milestone](milestones.md) of its own or of the main process, by `kill -9` of itself, by `_exit(3)`, by a Python
exception in its main thread, or by the kernel's OOM killer, in a control group with little memory that it joins.
Seconds from that moment until `hsops launch --wait-healthy` wrote its last line, exit 7, {grace} s of grace for the
other processes' last words included; the goal is 2 s. An exception's time is that of the raising: the rank's own way
out of Python is in it. Behind each figure: the machine's load then.
"""


def record(sglang: str, at: str, way: str, measured: Mapping[str, Any]) -> None:
    """Put one death in its place and renew the page. ``measured``: seconds, load, message, day, cores."""
    data = read()
    data.setdefault(sglang, {}).setdefault(at, {})[way] = dict(measured)
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(page(data))


def read() -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """All that was measured: release -> milestone -> way -> figures."""
    return json.loads(DATA.read_text()) if DATA.exists() else {}


def page(data: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> str:
    """The page."""
    parts = [HEAD.format(grace=DEATH_GRACE_S)]
    for sglang, found in data.items():
        every = [one for at in AT for one in found.get(at, {}).values()]
        when = " and ".join(sorted({f"{one['day']} on {one['cores']} cores" for one in every}))
        parts.append(f"\n## SGLang {sglang}\n\nMeasured {when}.\n\n")
        parts.append(f"| milestone | {' | '.join(WAYS.values())} |\n|---{'|---' * len(WAYS)}|\n")
        for at in AT:
            cells = [found.get(at, {}).get(way) for way in WAYS]
            shown = [f"{one['seconds']} (load {one['load']})" if one else "" for one in cells]
            parts.append(f"| `{at}` | {' | '.join(shown)} |\n")
        said = {str(one["message"]): None for one in every}
        parts.append("\nWhat was said:\n\n" + "".join(f"- {text}\n" for text in said))
    return "".join(parts)
