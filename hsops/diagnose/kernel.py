"""Whose a line of the kernel's log is: the log is the host's, and there may be several servers. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

_KILLED = re.compile(r"Killed process (\d+)")
_XID = re.compile(r"Xid \((?:PCI:)?([\da-fA-F:.]+)\)")


def kills(lines: Iterable[str], pids: Collection[int], *, whole: bool) -> Iterator[str]:
    """OOM kills of the server's processes. ``pids``: of it; ``whole``: every rank's is there, else names count too."""
    for line in lines:
        killed = _KILLED.search(line)
        if killed and (int(killed[1]) in pids or (not whole and "sglang" in line)):
            yield line


def faults(lines: Iterable[str], others: Iterable[str]) -> Iterator[str]:
    """GPU faults that the server may have met. ``others``: bus ids of GPUs that it does not use."""
    elsewhere = {_place(bus) for bus in others}
    for line in lines:
        found = _XID.search(line)
        if not found or _place(found[1]) not in elsewhere:
            yield line


def _place(bus: str) -> tuple[int, ...]:
    """Domain, bus and device: ``0000:c1:00`` of the kernel is ``00000000:C1:00.0`` of nvidia-smi."""
    return tuple(int(word, 16) for word in re.findall(r"[\da-fA-F]+", bus.partition(".")[0]))
