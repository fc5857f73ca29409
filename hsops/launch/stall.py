"""Slow or stuck? A launch is stalled when nothing that a working server moves has moved for long enough. Pure.

The bound is ``max(30 s, 2 x what good runs took for the step)``. Thirty seconds are safe there because good runs vouch
for the step: they were through it in half the time, and everything that makes the same step slower the next time (a
cold disk, a lost JIT cache, a busy host) shows in one of the signs below.

Nobody vouches for a step that no good run had: the first launch, or graph capture in a server that had none. Such a
step may be mute in every sign: weights are repacked on the GPU by one function for minutes (15 were seen), one graph
is captured, one kernel tuned. Three hundred seconds pass there, and then a look at the stacks (``hsops diagnose``)
decides by what it sees: a step known to be slow and mute is waited for, a stopped rank is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

# below these a change is noise: a spinning process faults and allocates a little, too
MOVES = {
    "milestone": 1,  # steps reached, counted over ranks
    "log": 1,  # messages that no health probe caused; a progress bar's redraws count
    "disk": 64 << 10,  # bytes that the tree has read from storage, also through page faults; a hung one reads none
    "cached": 64 << 10,  # bytes that came in bulk out of the page cache
    "faults": 16,  # major page faults: a memory-mapped checkpoint being read
    "touched": 4096,  # minor ones of the ranks, 16 MiB of pages: tensors come and go although memory stays as it is
    "memory": 16 << 20,  # resident bytes, up or down
    "gpu": 16,  # MiB of GPU memory in use, up or down
    "jit": 1,  # times that the run's own processes made a JIT cache grow
    "compiler": 1,  # compilers below the server: another one, or ticks of their CPU
}
FLOOR_S = 30.0  # for a step that good runs had
FLOOR_UNKNOWN_S = 300.0  # for one that none had
COMPILER_IDLE_S = 300.0  # a compiler that uses no CPU waits for its disk or its lock; for that long it is believed
_GROWING = frozenset(
    {"disk", "cached", "faults", "touched", "jit"}
)  # counters: less means that a process or the link ended


@dataclass(frozen=True, slots=True)
class Signs:
    """The last value of each sign of work and when it last moved, in seconds of the watcher's clock.

    Args:
        compiling: while a compiler is there it counts as moving, until this time.
        unseen: until then nobody could look.
        stacks: rank -> the stacks seen since anything else moved. A rank that is in a function where it was not before
            works; one that burns CPU in the same functions spins.
    """

    values: Mapping[str, float]
    moved: Mapping[str, float]
    compiling: float
    unseen: float = 0.0
    stacks: Mapping[str, frozenset[tuple[str, ...]]] = field(default_factory=dict)

    def seen(self, name: str, value: float, now: float) -> Signs:
        """With a fresh value of one sign."""
        old = self.values.get(name)
        if old is not None and abs(value - old) < MOVES[name]:
            return self
        fresh = {**self.values, name: value}
        if old is not None and value < old and name in _GROWING:
            return replace(self, values=fresh)
        return replace(self, values=fresh, moved={**self.moved, name: now}, stacks={})

    def compilers(self, pids_and_ticks: float, now: float, *, there: bool) -> Signs:
        """With the compilers at work: a figure that changes when one comes, goes or computes."""
        told = self.seen("compiler", pids_and_ticks, now) if there else self
        idle = now - told.moved.get("compiler", now) >= COMPILER_IDLE_S
        return replace(told, compiling=now) if there and not idle else told

    def functions(self, found: Mapping[str, tuple[str, ...]], now: float) -> Signs:
        """With the stacks of ranks, outermost function first. The first look only tells where they are."""
        found = {rank: stack for rank, stack in found.items() if not _waits_for_work(stack)}
        if not found:
            return self
        new = any(rank in self.stacks and _is_new(stack, self.stacks[rank]) for rank, stack in found.items())
        known = {rank: self.stacks.get(rank, frozenset()) | {stack} for rank, stack in found.items()}
        moved = {**self.moved, "function": now} if new else self.moved
        return replace(self, moved=moved, stacks={**self.stacks, **known})

    def unwatched(self, now: float) -> Signs:
        """Nobody could look until now: silence counts from here."""
        return replace(self, unseen=now)

    def silent_s(self, now: float) -> float:
        """Seconds since anything moved."""
        return now - max([self.compiling, self.unseen, *self.moved.values()])


def _waits_for_work(stack: tuple[str, ...]) -> bool:
    """A scheduler that is up polls in ever other functions, whatever has become of the rest of the server."""
    inside = next((i for i, name in enumerate(stack) if "event_loop" in name), None)
    return inside is not None and not any("run_batch" in name for name in stack[inside:])


def _is_new(stack: tuple[str, ...], known: Iterable[tuple[str, ...]]) -> bool:
    """It is neither further in nor further out of a function where the rank was: a loop calls and returns."""
    return all(stack[: len(old)] != old[: len(stack)] for old in known)


def nothing_seen(now: float) -> Signs:
    """At the start of a watch."""
    return Signs({}, {}, now, now)


def limit_s(*, floor: float | None, usual: float | None) -> float:
    """How long silence may last: ``max(floor, 2 x usual step)``, in seconds.

    Args:
        floor: as the user asked; None for the default.
        usual: what good runs took for the step under way; None when unknown.
    """
    least = floor if floor is not None else FLOOR_UNKNOWN_S if usual is None else FLOOR_S
    return max(least, 2 * usual if usual is not None else 0.0)
