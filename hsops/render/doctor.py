"""What the doctor found, for people: one line a host, then its findings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hsops.core.units import size
from hsops.doctor.findings import Facts, Finding
from hsops.render.paint import columns

_WORDS = {"blocker": "FAIL", "warning": "warn", "note": "note"}
_WIDTH = 118


def host_line(name: str, facts: Facts, round_trip_s: float) -> str:
    """``rtx8  Python 3.12.3 · SGLang 0.5.9 · torch 2.9.1 · 8x RTX PRO 6000 (96 GiB) · 3.2 TiB free for DIR · host``."""
    hello = facts.look("hello")
    torch = facts.look("torch")
    parts = [f"Python {hello['python']}", f"SGLang {hello['sglang']['version'] or 'not found'}"]
    parts += [f"torch {torch['version']}"] if torch else []
    parts += [_gpus(facts.gpus)] if facts.gpus else []
    parts += [f"driver {facts.gpus[0]['driver']}"] if facts.gpus and "driver" in facts.gpus[0] else []
    if dumps := facts.look(f"folder {facts.dumps}"):
        parts.append(f"{size(dumps['free'])} free for {facts.dumps}")
    return f"{name}  {' · '.join([*parts, hello['hostname'], f'{round_trip_s * 1000:,.0f} ms'])}"


def finding_lines(where: str, findings: Sequence[Finding]) -> Iterator[str]:
    """``rtx8  warn  what: why`` and the fix below it."""
    for found in findings:
        head = f"{where}  {_WORDS[found.level]}  "
        said = f"{found.what}: {found.why}" if found.why else found.what
        yield from textwrap.wrap(said, columns(_WIDTH), initial_indent=head, subsequent_indent=" " * len(head))
        if found.fix:
            yield from textwrap.wrap(found.fix, columns(_WIDTH), initial_indent=f"{' ' * len(head)}fix: ",
                                     subsequent_indent=" " * (len(head) + 5))  # fmt: skip


def closing(findings: Sequence[Finding]) -> str:
    """``1 blocker, 2 warnings``."""
    counts = {level: sum(found.level == level for found in findings) for level in ("blocker", "warning")}
    told = [f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items() if count]
    return ", ".join(told) or "nothing stands in the way"


def _gpus(gpus: Sequence[Mapping[str, Any]]) -> str:
    kinds: dict[tuple[str, str], int] = {}
    for gpu in gpus:
        kind = (gpu.get("name", "GPU").removeprefix("NVIDIA "), gpu.get("memory_total", ""))
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(
        f"{count}x {name}{f' ({float(mib) / 1024:.0f} GiB)' if mib.isdigit() else ''}"
        for (name, mib), count in kinds.items()
    )
