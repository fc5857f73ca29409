"""What the agent's looks at a run tell: values, and rates between them. Pure; time is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_RATE_S = 2.0  # a rate is taken over at least this long: reads come in bursts


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler below the server: its name, the source it compiles ("" when it does not say), seconds since its start.

    ``cpu``: in ticks, so that one that hangs is told from one that works.
    """

    name: str
    what: str
    age_s: float
    cpu: int


@dataclass(frozen=True, slots=True)
class RankVitals:
    """One rank: bytes read from storage and in bulk from the page cache, faults, resident bytes, the kernel's state."""

    read: int
    cached: int
    minflt: int
    cpu: int
    state: str

    @property
    def fetched(self) -> int:
        """Bytes it got from files, wherever they lay: what a read call fetches from storage counts twice otherwise."""
        return max(self.read, self.cached)


@dataclass(frozen=True, slots=True)
class Vitals:
    """One look. ``functions``: rank -> its stack, outermost first. ``gpu_mib``: None where nobody knows (yet).

    ``jit``: how often JIT caches grew by the run's own hand, and which one last ("" for none).
    """

    now: float
    read: int
    cached: int
    majflt: int
    rss: int
    gpu_mib: int | None
    compilers: tuple[Compiler, ...]
    jit: tuple[int, str]
    functions: Mapping[str, tuple[str, ...]]
    ranks: Mapping[str, RankVitals]


def parse_vitals(raw: Mapping[str, Any]) -> Vitals:
    """A ``vitals`` event of ``run-follow``."""
    jit = raw.get("jit") or {"grown": 0, "where": ""}
    return Vitals(
        now=raw["now"],
        read=raw["read"],
        cached=raw.get("cached", 0),
        majflt=raw["majflt"],
        rss=raw["rss"],
        gpu_mib=raw.get("gpu_mib"),
        compilers=tuple(Compiler(c["name"], c["what"], c["age_s"], c["cpu"]) for c in raw.get("compilers", ())),
        jit=(jit["grown"], jit["where"]),
        functions={rank: tuple(names) for rank, names in (raw.get("functions") or {}).items()},
        ranks={
            rank: RankVitals(r["read"], r["cached"], r["minflt"], r["cpu"], r["state"])
            for rank, r in raw.get("ranks", {}).items()
        },
    )


@dataclass(slots=True)
class Rates:
    """What ranks read lately."""

    _from: dict[str, tuple[float, int]] = field(default_factory=dict)
    reading: dict[str, float] = field(default_factory=dict)  # bytes a second
    fed: dict[str, float] = field(default_factory=dict)  # the watcher's clock when it last got a byte

    def take(self, vitals: Vitals, now: float) -> None:
        """One look more."""
        for rank, seen in vitals.ranks.items():
            then, fetched = self._from.setdefault(rank, (now, seen.fetched))
            self.fed.setdefault(rank, now)
            if now - then >= _RATE_S:
                self.reading[rank] = max(0, seen.fetched - fetched) / (now - then)
                self._from[rank] = (now, seen.fetched)
                if seen.fetched > fetched:
                    self.fed[rank] = now
