"""What the doctor found: a level, what, why it matters, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hsops.core.inventory import ServerSpec

Level = Literal["blocker", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Args:
        level: ``blocker``: a launch or an extraction cannot work; ``warning``: it may go wrong or be slow; ``note``:
            what could not be looked at.
        area: ``client``, ``python``, ``gpu``, ``pci``, ``space``, ``limits``, ``server``, ``slurm`` or ``look``.
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
    """A server of the inventory that is to run on the host.

    Args:
        name, model, tp: as there; ``port``: None for a free one, or one of another host.
        capture: its hs-dump's method; empty: it has none.
        job: the server, when it is a job of Slurm, and the host a login node; None: it runs here.
    """

    name: str
    model: str
    tp: int
    port: int | None
    capture: str = ""
    job: ServerSpec | None = None


@dataclass(frozen=True)
class Facts:
    """What the agent's verb ``doctor`` told of one host, and what it is for.

    Args:
        raw: look -> its result, or None; ``could_not``: why.
        servers: that are to run there.
        dumps: the folder of hidden states.
        skew_s: the host's clock minus ours; None when it cannot be told.
        usual_s: by server that is a job, from the launch to healthy in good runs; None when unknown.
    """

    raw: Mapping[str, Any]
    servers: Sequence[Wanted]
    dumps: str
    skew_s: float | None = None
    usual_s: Mapping[str, float | None] = field(default_factory=dict)

    def look(self, name: str) -> Any:
        """A look's result; None when it was not possible."""
        return self.raw.get(name)

    def blind(self, name: str) -> Mapping[str, str] | None:
        """Why a look was not possible."""
        return next((entry for entry in self.raw["could_not"] if entry["look"] == name), None)

    @property
    def jobs(self) -> Sequence[ServerSpec]:
        """The servers that are jobs of Slurm."""
        return [server.job for server in self.servers if server.job]

    @property
    def login_node(self) -> bool:
        """No server is to run here: each is a job, on a host that is not known yet."""
        return bool(self.jobs) and len(self.jobs) == len(self.servers)

    @property
    def gpus(self) -> Sequence[Mapping[str, str]]:
        """Its GPUs by nvidia-smi; none where there are none, or nobody can tell."""
        return self.look("gpus") or ()

    @property
    def owners(self) -> Mapping[int, str | None]:
        """SGLang's processes -> the run of hsops that each belongs to."""
        return {process["pid"]: process["run"] for process in self.look("processes") or ()}
