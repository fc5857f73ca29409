"""Lines for people about the lab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hsops.core.units import counted

if TYPE_CHECKING:
    from hsops.lab import Lab, Status
    from hsops.lab.processes import Found


def up_lines(lab: Lab) -> Iterator[str]:
    """After ``lab up``."""
    fault = f" · fault {lab.fault}" if lab.fault else ""
    if lab.done:
        yield f"lab up in {lab.took_s:.1f} s: {', '.join(lab.done)}"
    else:
        yield f"lab already up ({lab.took_s:.1f} s)"
    yield f"{lab.layout.home} · SGLang {lab.sglang} · {lab.model.name} · TP {lab.tp} · ssh port {lab.port}{fault}"
    yield f"next: hsops -i {lab.inventory} doctor"


def down_lines(ended: list[Found]) -> Iterator[str]:
    """After ``lab down``."""
    yield f"lab down, {counted(len(ended), 'process')} ended" if ended else "lab down"
    for process in ended:
        yield f"  {process.pid}  {process.title[:100]}"


def status_lines(status: Status) -> Iterator[str]:
    """``lab status``."""
    made = status.made
    if made is None:
        yield f"no lab at {status.layout.home}; hsops lab up makes one"
        return
    state = f"up, ssh port {status.port}" if status.port else "down"
    what = f"SGLang {made.sglang} · {made.model} · TP {made.tp} · fault {made.fault or 'none'}"
    yield f"{status.layout.home}  {state} · {what}"
    yield f"  packages   {status.packages} ({size(status.bytes['packages'])})"
    yield f"  home       {size(status.bytes['home'])}, of it dumps {size(status.bytes['dumps'])}"
    yield f"  processes  {len(status.processes) or 'none'}"
    for process in status.processes:
        yield f"    {process.pid}  {process.title[:100]}"


def up_data(lab: Lab) -> dict[str, Any]:
    """``lab up --json``."""
    return {
        "home": str(lab.layout.home),
        "inventory": str(lab.inventory),
        "sglang": lab.sglang,
        "fault": lab.fault,
        "tp": lab.tp,
        "model": lab.model.name,
        "ssh_port": lab.port,
        "done": list(lab.done),
        "took_s": round(lab.took_s, 3),
    }


def status_data(status: Status) -> dict[str, Any]:
    """``lab status --json``."""
    made = status.made
    return {
        "home": str(status.layout.home),
        "made": made is not None,
        "up": status.port is not None,
        "ssh_port": status.port,
        "sglang": made.sglang if made else None,
        "fault": made.fault if made else None,
        "tp": made.tp if made else None,
        "packages": str(status.packages),
        "processes": [{"pid": p.pid, "title": p.title} for p in status.processes],
        "bytes": status.bytes,
    }


def size(count: int) -> str:
    """Bytes for people, in binary units."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
