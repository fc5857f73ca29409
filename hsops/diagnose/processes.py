"""A process of the run as the probes saw it, and what that means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hsops.diagnose.stacks import Frame, Stack, doing, own_frames, waits_for_peers

RUNNING = 0.8  # share of looks that found the main thread on a core: it never waits
SPARSE = 300.0  # main-thread system calls a second below which a busy main thread does not poll for work
POLLING = 1000.0  # and above which it does: idle schedulers were measured at 5,000 to 24,000


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process did in about a second. CPU in percent of one core, rates per second.

    Args:
        cpu: of all its threads; ``main_cpu``, ``main_user`` of the main thread.
        looks: the main thread's system call in each look -> count; ``running`` when it was on a core.
        wchan: where in the kernel the main thread waits; ``0`` or ``?`` when it does not or may not be seen.
        switches: voluntary context switches of the main thread.
        read, rchar: bytes from disk, bytes by read calls; None when they may not be seen.
        faults: major page faults: each waits for the disk; ``touched``: minor ones.
        call, target: the system call that the main thread was in at the end, and what its first argument is open on;
            "" where it was in none or may not be seen.
        others: other threads that used a core: name, percent, state.
    """

    cpu: float
    main_cpu: float
    main_user: float
    looks: Mapping[str, int]
    wchan: str
    switches: float
    read: int | None
    rchar: int | None
    faults: int
    touched: int
    call: str = ""
    target: str = ""
    others: tuple[tuple[str, float, str], ...] = ()

    @property
    def running(self) -> float:
        """Share of looks that found the main thread on a core or waiting for one."""
        total = sum(self.looks.values())
        return self.looks.get("running", 0) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Trace:
    """System calls of a main thread under strace.

    Args:
        calls: in ``seconds``.
        top: (call, kind of file, count), most frequent first.
        eventfd_writes: single writes of up to 8 bytes to an eventfd.
        detached: strace let go of it and it is not stopped.
    """

    calls: int
    seconds: float
    top: tuple[tuple[str, str, int], ...]
    eventfd_writes: int
    detached: bool

    @property
    def rate(self) -> float:
        """Calls a second; strace itself slows a fast caller several times."""
        return self.calls / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Args:
        role: ``launcher``, ``scheduler``, ``detokenizer``, ``tokenizer``, ``child`` (not titled yet), ``compiler``,
            ``compile-worker``, ``resource-tracker`` or ``other``.
        rank: of a scheduler that tells it.
        state: the kernel's letter: R, S, D, T (stopped), t (traced), Z (dead, not collected).
        age: seconds since its start.
        files: what descriptors 0, 1 and 2 are.
        orphan: it carries the run's mark but is outside the launcher's tree.
        ended: how a dead one ended (``SIGKILL``, ``exit 1``), where that may be seen.
        preload: its LD_PRELOAD.
        stacks: of each dump that worked: the main thread first.
        native: the main thread's frames with those of C and C++, innermost first; of one rank of each kind.
        host: where it is, of a server over several hosts; else empty.
    """

    pid: int
    name: str
    argv: tuple[str, ...]
    role: str
    rank: int | None
    state: str
    age: float
    files: Mapping[str, str]
    orphan: bool = False
    ended: str = ""
    preload: str = ""
    activity: Activity | None = None
    stacks: tuple[tuple[Stack, ...], ...] = ()
    trace: Trace | None = None
    native: tuple[Frame, ...] = ()
    host: str = ""

    @property
    def label(self) -> str:
        """For people: ``TP3``, ``launch_server``, ``detokenizer``, ``TP3 on b``."""
        name = "launch_server" if self.role == "launcher" else self.role
        if self.role == "scheduler":
            name = f"TP{self.rank}" if self.rank is not None else "a scheduler"
        return f"{name} on {self.host}" if self.host else name

    @property
    def dead(self) -> bool:
        """Ended, and its parent has not collected it."""
        return self.state in ("Z", "X")

    @property
    def stopped(self) -> bool:
        """Stopped by a signal, a frozen cgroup or a debugger."""
        return self.state in ("T", "t")

    @property
    def stack(self) -> Stack | None:
        """The thread that does the work in the latest dump: an active forward thread, else the main thread.

        With the overlap scheduler of SGLang up to 0.5.3 the main thread only waits for a forward thread.
        """
        return self.looks[-1] if self.looks else None

    @property
    def looks(self) -> tuple[Stack, ...]:
        """That thread in each dump."""
        found = (next((t for t in threads if _forwards(t)), threads[0]) for threads in self.stacks if threads)
        return tuple(found)

    @property
    def doing(self) -> str:
        """What its working thread is about (``hsops.diagnose.stacks.doing``); ``?`` without a stack."""
        return doing(self.stack) if self.stack else "?"

    @property
    def still(self) -> bool | None:
        """Its main thread stands in the same own frame in both dumps; None without two dumps.

        One that waits is at the same line. One that spins runs through the lines of its loop, and in and out of what
        the loop calls: the same functions, up to the outer one of the two looks.
        """
        mains = [own_frames(threads[0]) for threads in self.stacks if threads]
        if len(mains) < 2:
            return None
        if not self.busy:
            return mains[0][:1] == mains[-1][:1]
        outer, inner = sorted(([(f.name, f.file) for f in reversed(main)] for main in (mains[0], mains[-1])), key=len)
        return inner[: len(outer)] == outer if outer else not inner

    @property
    def busy(self) -> bool:
        """Its main thread is on a core all the time."""
        return self.activity is not None and (
            self.activity.running >= RUNNING or (self.state == "R" and self.activity.main_cpu >= 85)
        )

    @property
    def spins(self) -> bool:
        """Busy, and it hardly calls the kernel: not the poll loop of an idle scheduler. False without strace."""
        return self.busy and self.trace is not None and self.trace.rate < SPARSE

    @property
    def polls(self) -> bool:
        """It asks for work all the time: what a healthy idle scheduler does at full CPU."""
        return self._calls_often and not self.asks_peers

    @property
    def asks_peers(self) -> bool:
        """It asks its peers all the time, in a collective of a batch: NCCL does while it starts a communicator."""
        return (
            self._calls_often
            and bool(self.still)
            and self.doing in ("forward", "result")
            and self.stack is not None
            and waits_for_peers(self.stack)
        )

    @property
    def _calls_often(self) -> bool:
        return self.trace is not None and self.trace.rate >= POLLING

    @property
    def reads(self) -> bool:
        """It gets on with files: bytes from disk or page cache, or page faults that wait for the disk."""
        a = self.activity
        return a is not None and ((a.read or 0) > 1 << 18 or (a.rchar or 0) > 1 << 20 or a.faults > 20)


def _forwards(thread: Stack) -> bool:
    return not thread.main and thread.active and doing(thread) == "forward"
