"""The states of a server that a diagnosis is held against: what is done to it, and what must be said of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

START = ("distributed", "weights", "kv-cache", "http", "warm-up")  # places on the way up, in the order they come
SPINS, STUCK = ("warmup-deadlock-busy-wait",), ("warmup-forward-stuck",)
AFTER_LOAD = ("post-load-silence-unresolved", "collective-deadlock")
LOAD_ONE, LOAD_ALL = ("rank-straggler-load",), ("hang-in-weight-loading",)
MISMATCH = ("collective-mismatch",)
ONE, EVERY = ("collective-deadlock",), ("scheduler-deadlock", "decode-step-hang", "first-request-hang")
LOOP = ("collective-deadlock", "engine-loop-hang", "scheduler-deadlock")
FINE = ("starting", "loading", "healthy", "healthy-loaded", "health-false-negative-under-load")
ALL, LAST = -1, -2  # who: every rank, the last one


@dataclass(frozen=True, slots=True)
class Case:
    """One state.

    Args:
        deed: of ``control.DEEDS``, or a signal's name for the process ``who``, or what ``test_hangs`` knows by itself.
        place: where a rank does it: one of ``START`` while it starts; later ``forward``, ``loop`` or ``request``.
        who: a rank, ``ALL``, ``LAST``, or ``launcher``, ``detokenizer``.
        classes: what may be said of it; the first is the best.
        rank: the suspect to be named: a rank or ``LAST``; None when none is.
        ends: nothing is left of the server afterwards.
        tag: what else tells it from others.
    """

    deed: str
    place: str
    who: int | str
    classes: tuple[str, ...]
    rank: int | None = None
    ends: bool = False
    tag: str = ""

    @property
    def id(self) -> str:
        """For people and the command line."""
        who = {ALL: "all", LAST: "last"}.get(self.who, self.who) if isinstance(self.who, int) else self.who
        return f"{self.deed}@{self.place}.{f'TP{who}' if isinstance(who, int) else who}{self.tag and f'-{self.tag}'}"

    @property
    def at(self) -> str:
        """The place as ``control`` knows it: the warm-up is the first forward pass."""
        return "forward" if self.place == "warm-up" else self.place


@dataclass(frozen=True, slots=True)
class Session:
    """One start of a server, and what it goes through.

    Args:
        up: states on its way up; serving: once it is healthy, in this order.
        patched: with the hs-dump patch.
        fault: of ``hsops lab up --fault``.
        fine: looks at the healthy server, idle and loaded by turns.
        untraced: whoever looks has no right to trace.
        followed: looks all the way up, too: a start without a hang.
    """

    name: str
    up: tuple[Case, ...] = ()
    serving: tuple[Case, ...] = ()
    patched: bool = False
    fault: str | None = None
    fine: int = 0
    untraced: bool = False
    followed: bool = False

    @property
    def cases(self) -> tuple[Case, ...]:
        """All of them, in order."""
        return (*self.up, *self.serving)


def _stops(*who: int | str) -> tuple[Case, ...]:
    named = {"launcher": "tokenizer-blocked", "detokenizer": "detokenizer-stalled"}
    return tuple(
        Case("SIGSTOP", "serving", one, (named.get(str(one), "rank-stopped"),), one if isinstance(one, int) else None)
        for one in who
    )


def _serves(deed: str, who: int, place: str = "forward") -> Case:
    classes = LOOP if place == "loop" else EVERY if who == ALL else ONE
    return Case(deed, place, who, classes, None if who == ALL else who)


SESSIONS = (
    Session("good", fine=10, followed=True),
    Session("slow", fine=3, followed=True, fault="sleepy-load"),
    Session(
        "spin",
        up=(
            Case("lock", "distributed", LAST, ("rank-never-joined",), LAST),
            Case("fifo", "weights", LAST, LOAD_ONE, LAST),
            Case("spin", "kv-cache", ALL, SPINS),
            Case("lock", "http", 0, AFTER_LOAD, 0),
            Case("spin", "warm-up", LAST, SPINS, LAST),
        ),
        serving=(
            *_stops(0, LAST),
            *(_serves("spin", who) for who in (0, LAST, ALL)),
            _serves("lock", LAST),
            _serves("spin", LAST, "loop"),
            Case("SIGKILL", "serving", LAST, ("rank-killed",), LAST, ends=True),
        ),
        fine=3,
    ),
    Session(
        "lock",
        up=(
            Case("SIGSTOP", "distributed", LAST, ("rank-stopped",), LAST),
            Case("trickle", "weights", ALL, FINE),
            Case("spin", "kv-cache", LAST, SPINS, LAST),
            Case("pipe", "http", LAST, AFTER_LOAD, LAST),
            Case("lock", "warm-up", ALL, STUCK),
        ),
        serving=(
            *_stops("detokenizer", "launcher"),
            *(_serves("lock", who) for who in (0, ALL)),
            _serves("pipe", LAST),
            _serves("lock", 0, "loop"),
            Case("spin", "request", "launcher", ("tokenizer-blocked",)),
            Case("raise", "forward", LAST, ("scheduler-died-exception",), LAST, ends=True),
        ),
        fine=3,
    ),
    Session(
        "fifo",
        up=(
            Case("fifo", "weights", ALL, LOAD_ALL),
            Case("lock", "kv-cache", LAST, AFTER_LOAD, LAST),
            Case("receive", "http", LAST, MISMATCH),
            Case("fifo", "warm-up", LAST, STUCK, LAST),
        ),
        serving=(
            *(_serves("fifo", who) for who in (0, LAST)),
            _serves("pipe", 0),
            Case("receive", "forward", LAST, ("collective-mismatch", "collective-deadlock")),
            Case("receive", "forward", ALL, ("collective-mismatch", "collective-deadlock")),
            _serves("lock", LAST, "loop"),
            Case("lock", "request", "launcher", ("tokenizer-blocked",)),
            Case("SIGKILL", "serving", "launcher", ("launcher-killed",), ends=True),
        ),
        fine=3,
    ),
    Session(
        "dumps",
        serving=(
            Case("full", "dumps", "nobody", ("dump-dir-full",)),
            Case("read-only", "dumps", "nobody", ("dump-dir-unwritable",)),
            Case("SIGKILL", "serving", 0, ("rank-killed",), 0, ends=True),
        ),
        patched=True,
        fine=3,
    ),
    Session(
        "untraced",
        up=(
            Case("spin", "kv-cache", ALL, SPINS, tag="untraced"),
            Case("lock", "http", LAST, AFTER_LOAD, LAST, tag="untraced"),
        ),
        serving=(
            *(replace(_serves("spin", who), tag="untraced") for who in (LAST, ALL)),
            replace(_serves("lock", 0), tag="untraced"),
            replace(_serves("lock", LAST, "loop"), tag="untraced"),
            Case("watch", "forward", LAST, ONE, LAST),
            Case("SIGKILL", "serving", LAST, ("rank-killed",), LAST, ends=True, tag="untraced"),
        ),
        fine=3,
        untraced=True,
    ),
    Session("quiet", serving=(replace(_serves("spin", LAST), tag="quiet"),), fine=6),  # by name only: nothing beside it
    Session("detokenizer", serving=(Case("SIGKILL", "serving", "detokenizer", ("detokenizer-died",), ends=True),)),
    Session("port", up=(Case("port", "kv-cache", ALL, ("port-in-use",), ends=True),)),
    Session("killed", up=(Case("SIGKILL", "weights", LAST, ("rank-killed",), LAST, ends=True),)),
    Session("raised", up=(Case("raise", "kv-cache", 0, ("scheduler-died-exception",), 0, ends=True),)),
    Session("v1", up=(Case("v1-patch", "warm-up", ALL, ("aux-hidden-not-captured",), ends=True),), fault="v1-patch"),
)
