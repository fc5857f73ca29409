"""What a log says about the capture: models that SGLang could not import, and ranks that do not capture."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hsops.core.log_lines import Record

# SGLang 0.5.4-0.5.23, models/registry.py: it goes on without the module, and may serve another class in its place
_UNIMPORTED = re.compile(r"Ignore import error when loading (?P<module>[\w.]+): (?P<why>.*)")
# hsops_hs_dump/hello.py: said beside the hello file, and alone where that cannot be written
_REFUSAL = re.compile(r"hsops_hs_dump: (?:(?P<kind>rank|pid) (?P<number>\d+): )?NOT capturing: (?P<why>.*)")


@dataclass(frozen=True, slots=True)
class Unimported:
    """A module of models that SGLang could not import: why, and the log's line, from 1."""

    module: str
    why: str
    line: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A process that does not capture: ``TP1``, or ``process 4711`` before it knows its rank, or ``a process``."""

    who: str
    why: str
    line: int


@dataclass(slots=True)
class CaptureLines:
    """All of them, each kind once a module or process, in the order of the log."""

    unimported: dict[str, Unimported] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)

    def feed(self, record: Record) -> None:
        """Look at one record."""
        if found := _UNIMPORTED.search(record.text):
            name = found["module"]
            self.unimported.setdefault(name, Unimported(name, found["why"].strip(), record.line))
        elif found := _REFUSAL.search(record.text):
            who = {"rank": f"TP{found['number']}", "pid": f"process {found['number']}"}.get(found["kind"], "a process")
            self.refusals.setdefault(who, Refusal(who, found["why"].strip(), record.line))
