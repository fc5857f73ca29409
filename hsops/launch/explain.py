"""What a start does while its log is silent: who reads how fast, what is compiled, who stands where. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from hsops.core.log_summary import Bar
from hsops.core.milestone_table import stage_end
from hsops.core.units import size
from hsops.launch.watch import Watch

_DRIVERS = frozenset({"ninja", "cc", "gcc", "g++", "c++", "collect2", "ld", "as"})  # start or join what others compile
_COMPILERS_TOLD = 2
_STARVED_S = 5.0  # a rank that got no byte for so long "reads nothing"
_GROWN_S = 15.0  # a cache that grew within this long is growing


def doing(watch: Watch, *, now: float) -> tuple[str, ...]:
    """The sentences that fit now, the most telling first; none when nothing is known.

    Args:
        now: seconds of the watcher's clock.
    """
    return (*_compiling(watch), *_weights(watch, now), *_graphs(watch), *_cache(watch, now), *_places(watch))


def _compiling(watch: Watch) -> Iterator[str]:
    """Compilers, longest first; those that only start others when there is no other."""
    if watch.vitals is None:
        return
    found = watch.vitals.compilers
    told = [c for c in found if c.name not in _DRIVERS] or list(found)
    for one in told[:_COMPILERS_TOLD]:
        yield f"{one.name} is compiling {one.what or 'something'} for {one.age_s:.0f} s"
    if len(told) > _COMPILERS_TOLD:
        yield f"{len(told) - _COMPILERS_TOLD} compilers more"


def _weights(watch: Watch, now: float) -> Iterator[str]:
    """The bar is rank 0's and tells files that were opened: ranks are loaded when they say so."""
    if watch.summary.stage != "weights":
        return
    behind = watch.summary.missing(stage_end("weights"))
    bar = _bar(watch, "shard")
    if behind:
        whole = bar is not None and bar.percent == 100
        head = "shard bar 100 % is not loaded: " if whole else f"shard bar {_at(bar)}: " if bar else ""
        yield f"{head}{_names(behind)} still loading, {_speed(watch, behind, now)}"


def _graphs(watch: Watch) -> Iterator[str]:
    if watch.summary.stage == "graphs" and (bar := _bar(watch, "captur") or _bar(watch, "progress")):
        yield f"CUDA graphs {_at(bar)}"  # the bar of 2025-03 has no caption


def _cache(watch: Watch, now: float) -> Iterator[str]:
    grown = watch.signs.moved.get("jit")
    where = watch.vitals.jit[1] if watch.vitals else ""
    if where and grown is not None and now - grown < _GROWN_S:
        yield f"the JIT cache {where} grows"


def _places(watch: Watch) -> Iterator[str]:
    """Where py-spy saw the ranks in this silence: the function that they are in, not what it calls of Python's own."""
    where: dict[str, list[str]] = {}
    for rank, stack in sorted(watch.places.items()):
        where.setdefault(stack[-1], []).append(rank)
    for function, ranks in where.items():
        yield f"{_names(ranks)} in {function}"


def _speed(watch: Watch, ranks: tuple[str, ...], now: float) -> str:
    """What they read together. A stopped one is told: it will not go on by itself."""
    states = watch.vitals.ranks if watch.vitals else {}
    stopped = [rank for rank in ranks if rank in states and states[rank].state in "Tt"]
    if stopped:
        return f"{_names(stopped)} stopped by a signal"
    rate = sum(watch.rates.reading.get(rank, 0.0) for rank in ranks)
    if rate:
        return f"reading {size(rate)}/s"
    fed = max((watch.rates.fed.get(rank, now) for rank in ranks), default=now)
    return f"reading nothing for {now - fed:.0f} s" if now - fed >= _STARVED_S else "between two reads"


def _bar(watch: Watch, word: str) -> Bar | None:
    found = [bar for caption, bar in watch.summary.bars.items() if word in caption.lower()]
    return found[-1] if found else None


def _at(bar: Bar) -> str:
    return f"{bar.percent} %" + (f" ({bar.done}/{bar.total})" if bar.total else "")


def _names(ranks: list[str] | tuple[str, ...]) -> str:
    return ", ".join(ranks) if len(ranks) <= 4 else f"{ranks[0]}, {ranks[1]} and {len(ranks) - 2} more"
