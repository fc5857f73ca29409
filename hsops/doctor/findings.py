"""What the doctor found: a level, what, why it matters, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["blocker", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Args:
        level: ``blocker``: a launch or an extraction cannot work; ``warning``: it may go wrong or be slow; ``note``:
            what could not be looked at.
        area: ``client``, ``python``, ``gpu``, ``pci``, ``space``, ``limits``, ``server`` or ``look``.
        what: one sentence.
        why: what it leads to; may be empty.
        fix: what to do; may be empty.
    """

    level: Level
    area: str
    what: str
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A server of the inventory that is to run on the host; ``capture``: its hs-dump's method; empty: it has none."""

    name: str
    model: str
    tp: int
    port: int | None
    capture: str = ""


@dataclass(frozen=True)
class Facts:
    """What the agent's verb ``doctor`` told of one host, and what it is for.

    Args:
        raw: look -> its result, or None; ``could_not``: why.
        servers: that are to run there.
        dumps: the folder of hidden states.
        skew_s: the host's clock minus ours; None when it cannot be told.
    """

    raw: Mapping[str, Any]
    servers: Sequence[Wanted]
    dumps: str
    skew_s: float | None = None

    def look(self, name: str) -> Any:
        """A look's result; None when it was not possible."""
        return self.raw.get(name)

    def blind(self, name: str) -> Mapping[str, str] | None:
        """Why a look was not possible."""
        return next((entry for entry in self.raw["could_not"] if entry["look"] == name), None)

    @property
    def gpus(self) -> Sequence[Mapping[str, str]]:
        """Its GPUs by nvidia-smi; none where there are none, or nobody can tell."""
        return self.look("gpus") or ()

    @property
    def owners(self) -> Mapping[int, str | None]:
        """SGLang's processes -> the run of hsops that each belongs to."""
        return {process["pid"]: process["run"] for process in self.look("processes") or ()}
