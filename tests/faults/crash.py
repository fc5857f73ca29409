"""The judge of the crash tests: after one more command a tree is exactly old or exactly new."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.faults.ground import LINKED, SHARED, Change, Ground, Reply, Tree, sha256, timeless
from tests.faults.syscalls import Call, calls, points, strace

ALL = os.environ.get("HSOPS_CRASH") == "all"  # set by `make crash`
TRIES = 30  # each is missed as often as not while the host's processes come and go
REFUSALS = {"no-room", "not-writable", "not-written", "os-error", "damaged", "unfinished", "locked", "no-sglang"}


@contextmanager
def ground() -> Iterator[Ground]:
    """In memory where that is possible: what is tried is the order of calls, not the disk."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="hsops-crash-", dir=shm if os.access(shm, os.W_OK) else None))
    try:
        yield Ground(folder)
    finally:
        shutil.rmtree(folder)


class Trial:
    """One change, whose trees before and after are known, and its system calls.

    Args:
        ground: where.
        change: which.
    """

    def __init__(self, ground: Ground, change: Change) -> None:
        self.ground, self.change, self.seen, self.codes = ground, change, Counter[str](), Counter[str]()
        self.params = change.prepare(ground)
        self.old, self.old_memory = ground.tree(), ground.memory()
        log = ground.folder / "trace"
        done = ground.call(change.verb, self.params, *strace(log))
        assert done.exit == 0, done
        self.new, self.new_memory = ground.tree(), ground.memory()
        root = ground.site if self.params["place"] == "source" else Path(self.params["place"])
        self.changed = {str((root / path).relative_to(ground.site)) for path in done.result["changed"]}
        self.trace = calls(log)
        self.points = points(self.trace, ground.site, ground.state)
        self.repairing: list[Call] = []
        self.seconds, self.stamps = (0.0, 0.0), list[int]()
        assert self.new != self.old and len(self.points) > 40

    def again(self) -> None:
        """Everything as before the change."""
        self.ground.restore(self.change.name)

    def is_old(self, tree: Tree) -> bool:
        """To the byte, the mode, the owner and the time stamp."""
        return tree == self.old

    def is_new(self, tree: Tree) -> bool:
        """As ``is_old``; an apply promises no time stamp of the files that it writes, a revert does."""
        if self.change.verb == "patch-revert":
            return tree == self.new
        return timeless(tree, self.changed) == timeless(self.new, self.changed)

    def judge(self, told: str, allowed: str = "old new") -> str:
        """One more command, then the verdict ``old`` or ``new``; ``told`` names the fault."""
        pending = self.ground.state.joinpath("patches").rglob("journal.json")
        interrupted = bool(list(pending))
        # a journal is found by a command for any folder, what is left without one by the next for the same
        reply = self.ground.inspect("source" if interrupted else self.params["place"])
        assert reply.exit == 0, f"{told}: {reply}"
        assert bool(reply.recovered) == interrupted, f"{told}: {reply.events}"
        tree, memory = self.ground.tree(), self.ground.memory()
        verdict = "old" if self.is_old(tree) else "new" if self.is_new(tree) else f"neither: {difference(self, tree)}"
        assert verdict in allowed.split(), f"{told}: {verdict}"
        assert memory == (self.old_memory if verdict == "old" else self.new_memory), f"{told}: {verdict}, {memory}"
        assert (self.ground.folder / "uv-cache" / LINKED.rpartition("/")[2]).read_bytes() == SHARED, told
        state = reply.result["patches"]["p"]
        assert state["state"] in ("applied", "absent"), f"{told}: {state}"
        self.seen[f"{verdict}, {reply.recovered[0]}" if interrupted else verdict] += 1
        return verdict

    def kill_at(self, point: Call) -> None:
        """As ``kill``, then one more command."""
        self.kill(point)
        self.judge(f"killed at {point}")

    def kill(self, point: Call) -> None:
        """SIGKILL when the call is entered: it does not happen, all before it did."""

        def run(*wrap: str) -> Reply:
            self.again()
            return self.ground.call(self.change.verb, self.params, *wrap)

        self._meet(point, "signal=KILL", run)

    def kill_repair(self, index: int) -> None:
        """The half-done change lies there; the command that undoes it is killed at one of its calls."""

        def run(*wrap: str) -> Reply:
            self.ground.restore("half")
            return self.ground.call("patch-inspect", {"patches": ["p"]}, *wrap)

        point = self.repairing[index]
        self._meet(point, "signal=KILL", run)
        self.judge(f"the repair killed at {point}", "old")

    def _meet(self, point: Call, fault: str, run: Callable[..., Reply]) -> Reply:
        """The reply of a run in which the fault met the call.

        strace counts calls by name. A run that lists the processes of a busy machine makes more or fewer than the
        recorded one, and one that takes its time tells so from a thread, counted for itself: where another call was
        met, it is tried again, with the count of that run, or of one without a fault where that run ended too early.
        """
        log, nth, killing = self.ground.folder / "trace", point.nth, fault == "signal=KILL"
        for _ in range(TRIES):
            reply = run(*strace(log, f"{point.name}:{fault}:when={nth}"))
            found = calls(log)
            met = [call for call in (found[-1:] if killing else found) if call.what == point.what]
            killed = reply.exit in (-signal.SIGKILL, 128 + signal.SIGKILL)
            if met and (killed if killing else met[0].injected):
                return reply
            counted = [call.nth for call in found if call.what == point.what]
            if not counted:
                run(*strace(log))
                counted = [call.nth for call in calls(log) if call.what == point.what]
            nth = counted[0] if counted else nth
        raise AssertionError(f"{fault} did not meet {point} in {TRIES} runs; the last one: {reply}")

    def fail_at(self, point: Call, error: str) -> None:
        """The call fails: a refusal with the tree as before, or success where it did not matter."""

        def run(*wrap: str) -> Reply:
            self.again()
            return self.ground.call(self.change.verb, self.params, *wrap)

        reply, told = self._meet(point, f"error={error}", run), f"{error} at {point}"
        check_refusal(reply, told)
        if reply.exit == 1 and reply.error["code"] != "unfinished":
            assert self.is_old(self.ground.tree()), f"{told}: {difference(self, self.ground.tree())}"
        verdict = self.judge(told, "old" if reply.exit == 1 else "new")
        self.codes[reply.error.get("code", "carried out") + f": {verdict}"] += 1

    def kill_after(self, share: float) -> None:
        """SIGKILL at some moment: ``share`` of the time from the change's first write to its end; < 0: before it."""
        self.again()
        process = self._start()
        if share < 0:
            time.sleep((1 + share) * self.seconds[0])
        else:
            self._wait_for_a_write(process)
            time.sleep(share * self.seconds[1])
        process.kill()
        process.wait(10)
        self.judge(f"killed after {share:.4f} of its time")

    def measure(self) -> None:
        """How long the verb takes here before its first write, and from there on: ``seconds``."""
        self.again()
        started = time.monotonic()
        process = self._start()
        self._wait_for_a_write(process)
        begun = time.monotonic()
        process.wait(60)
        self.seconds = (begun - started, time.monotonic() - begun)

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [str(self.ground.python), "-I", str(self.ground.agent), self.change.verb]
        self.stamps = self._stamps()
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert process.stdin
        process.stdin.write(self.ground.request(self.params))
        process.stdin.close()
        return process

    def _wait_for_a_write(self, process: subprocess.Popen[bytes]) -> None:
        while self._stamps() == self.stamps and process.poll() is None:
            pass  # the whole change takes a few milliseconds: no time to sleep

    def _stamps(self) -> list[int]:
        own = self.ground.state / "patches/p" / sha256(os.fsencode(os.path.realpath(self.ground.site)))[:12]
        stamps = []
        for folder in (own.parent, own, own / "blobs"):
            with suppress(FileNotFoundError):
                stamps.append(folder.stat().st_mtime_ns)
        return stamps


def check_refusal(reply: Reply, told: str) -> None:
    """An answer, and when it is no, one of those that a client explains; never a traceback."""
    assert reply.exit in (0, 1), f"{told}: {reply}"
    if reply.exit == 1:
        assert reply.error.get("code") in REFUSALS and reply.error["message"], f"{told}: {reply}"
    else:
        assert reply.result, f"{told}: {reply}"


def spread(trials: list[Trial], count: int, every: int, act: Callable[[Trial, int], None]) -> None:
    """``act`` on the indices below ``count``: on all for ``make crash``, else on every n-th; one at a time a trial."""
    indices = range(count) if ALL else range(random.Random(count).randrange(every), count, every)
    free: SimpleQueue[Trial] = SimpleQueue()
    for trial in trials:
        free.put(trial)

    def one(index: int) -> None:
        trial = free.get()
        try:
            act(trial, index)
        finally:
            free.put(trial)

    with ThreadPoolExecutor(len(trials)) as pool:
        ended = [pool.submit(one, index).exception for index in indices]
        wrong = [str(error()) for error in ended if error()]
    assert not wrong, f"{len(wrong)} of {len(indices)}:\n" + "\n".join(wrong[:20])


def difference(trial: Trial, tree: Tree) -> dict[str, Any]:
    """Files that are as in neither tree."""
    names = {*tree, *trial.old}
    return {n: (trial.old.get(n), tree.get(n)) for n in sorted(names) if tree.get(n) != trial.old.get(n)}
