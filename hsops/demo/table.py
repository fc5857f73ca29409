"""The demo for people: each command as typed, and a table to paste at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hsops.core.units import clock, size
from hsops.demo.story import FAULT, Act, Ending
from hsops.render.describe import describe


@describe.register
def _(event: Act) -> Iterable[str]:
    yield ""
    yield f"# {event.why}"
    yield f"$ {event.typed}"


def ending(end: Ending) -> Iterator[str]:
    """The table."""
    yield ""
    rows = {
        "server": f"SGLang {end.sglang}, TP {end.tp}, tiny DeepSeek-V3, on this CPU over SSH",
        "healthy": f"after {clock(end.healthy_s)}",
        "samples": f"{end.samples:,}",
        "tokens": f"{end.tokens:,}",
        "bytes": f"{end.bytes:,} ({size(end.bytes)})",
        "errors": f"{end.errors}",
        "fault": f"{FAULT}, planted in SGLang, not told to hsops",
        "caught": f"launch exit 7 after {clock(end.caught_s)}",
        "diagnosis": f"{end.diagnosis}, confidence {end.confidence}",
        "left over": f"{end.left} processes",
        "in all": clock(end.total_s),
    }
    yield "hsops demo"
    for name, value in rows.items():
        yield f"  {name:<10} {value}"
