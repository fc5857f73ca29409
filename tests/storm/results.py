"""docs/reference/fetch-faults.json and the page made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.measured import Measured
from tests.storm.harm import KINDS

HEAD = """\
# A fetch in a storm

Written by `make fetch-faults`; do not edit. Over a loopback sshd, dumps of 100 MiB, one of 300 MiB and small ones are
pulled into a file system of their own, over ssh and beside it, with and without `--evict`, while something is killed,
cut, filled, rewritten or flipped at random moments; after each end of the client it is started again until all is here.
A watcher looks at both folders all the time and reads every file under a dump's name as soon as it appears.

*Bytes sent again* is what the fetches themselves counted (twice a second) beyond what was missing before and is not
missing after. *More than a piece a stream*: runs that ended whole after which that was more than nothing, beside what
was rewritten or flipped; runs that ended otherwise after which it was more than 64 MiB a stream.
"""


def page(data: Mapping[str, Any]) -> str:
    """The page."""
    rows = [
        ("processes killed", data["kills"]),
        ("pulls begun, ended whole", f"{data['pulls']}, {data['whole']}"),
        ("bytes of one pull", f"{data['bytes']:,}"),
        ("final content right", f"{data['right']} of {data['whole']}"),
        ("torn files seen", data["torn"]),
        ("sources gone before their copy was safe", data["early"]),
        ("looks of the watcher", f"{data['looks']:,}"),
        ("bytes sent again", f"{data['again']:,}"),
        ("more than a piece a stream", data["too_much"]),
        ("streams lost and opened again", data["lost_streams"]),
        ("wrong checksums, sent again", data["bad_checksums"]),
        ("dumps removed on the host", data["evicted"]),
        ("load of the machine", data["load"]),
    ]
    lines = [f"| {what} | {figure} |" for what, figure in rows]
    harms = [f"| {kind.name} | {data['harms'].get(kind.name, 0)} |" for kind in KINDS]
    exits = [f"| {code} | {count} |" for code, count in sorted(data["exits"].items(), key=lambda item: int(item[0]))]
    said = [f"| {words} | {count} |" for words, count in sorted(data["said"].items())]
    tables = ["| | |", "|---|---|", *lines, "", "| happened | times |", "|---|---|", *harms, ""]
    return "\n".join(
        [
            HEAD,
            *tables,
            "| exit of a client | times |",
            "|---|---|",
            *exits,
            "",
            "| error of a client | times |",
            "|---|---|",
            *said,
            "",
        ]
    )


MEASURED = Measured("fetch-faults", page)
