"""Processes that nobody looks after: SGLang's ranks without a launcher, a run's without its supervisor, holders of GPU
memory that belong to no run. Told to whoever asks; ended only one by one, by pid and start time.
"""

import os
import pwd
import time
from typing import Any

from hsops.agent import audit, doctor_gpus, lock, procs
from hsops.agent.ending import Ending, outlive_client
from hsops.agent.full_disk import Unwritten
from hsops.agent.probe_tools import CouldNot
from hsops.agent.proof import GPU_S, Proof, mib_of
from hsops.agent.protocol import Refusal
from hsops.agent.rundir import all_runs, runs_folder

_TOOL_S = 8.0
_LEAST_MIB = 256  # less is a context, or a monitor
_CUDA = ("/dev/nvidia", "libcuda.so")


def orphans(params: "dict[str, Any]") -> "dict[str, Any]":
    """All of them, or one. ``params``: optional ``pid``.

    Result: ``orphans`` [{``pid``, ``start``, ``kind`` (no-launcher | no-supervisor | gpu-memory), ``command``,
    ``user``, ``age_s``, ``gpu_mib``, ``gpus``, ``run`` (its id, or null), ``below`` (pids that would end with it),
    ``refused`` (why it cannot be ended, or empty)}], ``could_not``: why nothing is known of GPU memory (``why``,
    ``message``), or null.

    Raises:
        Refusal: no-such-process; not-an-orphan: ``pid`` is none.
    """
    seen = _Seen(params)
    pids = seen.kinds()
    if (pid := params.get("pid")) is not None:
        if pid not in seen.everyone or seen.everyone[pid].zombie:
            raise Refusal("no-such-process", f"there is no process {pid}", pid=pid)
        if pid not in pids:
            raise Refusal("not-an-orphan", f"pid {pid} ({procs.title(pid)[:120]}) {seen.why_not(pid)}", pid=pid)
    told = [seen.told(one, kind) for one, kind in sorted(pids.items()) if pid in (None, one)]
    return {"orphans": told, "could_not": seen.could_not}


def stop(params: "dict[str, Any]") -> "dict[str, Any]":
    """End an orphan and what is below it. ``params``: pid, start, grace, gpu_s; ``lock``.

    Result: ``{"orphan", "ended", "left", "seconds", "proof", "beside", "unwritten"}``, as of ``orphans`` and ``stop``.

    Raises:
        Refusal: as of ``orphans``; changed-meanwhile: the pid is another process' by now; not-yours: another user's, or
            another run's; locked, lock-lost (``lock.held``), disk-full.
    """
    lacks = Unwritten(params)
    with lacks.locked() as held:
        (one,) = orphans(params)["orphans"]
        if one["start"] != params["start"]:
            said = f"pid {one['pid']} is another process by now: {one['command']}"
            raise Refusal("changed-meanwhile", said, pid=one["pid"])
        if one["refused"]:
            raise Refusal("not-yours", f"pid {one['pid']} ({one['command']}): {one['refused']}", pid=one["pid"])
        outlive_client()
        began, root = time.monotonic(), (one["pid"], one["start"])
        ending = Ending(_Tree(root).rest)
        proof = Proof(ending.pids, float(params.get("gpu_s", GPU_S)))
        ending.end([root], float(params.get("grace", 10.0)), proof.note)
        ended, left = ending.ended(), ending.left()
        outcome = f"{len(left)} processes left" if left else "done"
        told = {"orphan": one["pid"], "kind": one["kind"], "title": one["command"], "outcome": outcome}
        with lacks.writing("its line of the audit log"):
            audit.append(params["state_dir"], {"action": "stop-orphan", **lock.who(params), **told})
        seconds = round(time.monotonic() - began, 2)
        return {"orphan": one, "ended": ended, "left": left, "seconds": seconds, "proof": proof.told(),
                "beside": held.beside, "unwritten": lacks.told}  # fmt: skip


def ranks(params: "dict[str, Any]") -> "set[int]":
    """Pids of SGLang's ranks and helpers whose launcher is gone, without asking who holds GPU memory."""
    seen = _Seen(params, gpus=False)
    return {pid for pid in seen.kinds() if "sglang::" in procs.title(pid) and not seen.launched(pid)}


class _Tree:
    """A process and all that was ever seen below it, also when their parent is gone by now."""

    def __init__(self, root: "tuple[int, int]") -> None:
        self._known = {root}

    def rest(self) -> "list[procs.Proc]":
        everyone = procs.census()
        there = [pid for pid, start in self._known if pid in everyone and everyone[pid].start == start]
        found = {*there, *procs.below(there, everyone)}
        self._known.update((pid, everyone[pid].start) for pid in found)
        return [everyone[pid] for pid in sorted(found) if not everyone[pid].zombie]


class _Seen:
    """Every process, its run, and its GPU memory, at one moment."""

    def __init__(self, params: "dict[str, Any]", gpus: bool = True) -> None:
        self.snapshot = procs.Snapshot()
        self.everyone = self.snapshot.everyone
        self.ours: dict[int, str] = {}  # pid -> run of this state folder
        self.lost: set[str] = set()  # such runs without a supervisor
        for run in all_runs(runs_folder(params)):
            state = run.read("state.json")
            pids = [proc.pid for proc in run.processes(state, self.snapshot)]
            if run.read("job.json"):  # Slurm's node may be this very host
                pids = list(self.snapshot.shows(run.mark(), os.path.realpath(run.log)))
                pids += procs.below(pids, self.everyone)
                lost = bool(pids) and not run.busy()
            else:
                lost = bool(pids) and not procs.is_alive(*state.get("supervisor", (0, 0)))
            if lost:
                self.lost.add(run.id)
            self.ours.update(dict.fromkeys(pids, run.id))
        self.others = self._others()
        self.apps, self.could_not = self._holders() if gpus else ([], None)

    def _others(self) -> "dict[int, str]":
        """pid -> run of another state folder, with all below it."""
        found = {pid: run for pid, run in self.snapshot.runs().items() if pid not in self.ours}
        for pid, run in list(found.items()):
            found.update(dict.fromkeys(procs.below([pid], self.everyone) - set(found) - set(self.ours), run))
        return found

    def _holders(self) -> "tuple[list[dict[str, Any]], dict[str, str] | None]":
        try:
            index = {gpu.get("uuid"): gpu.get("index", "?") for gpu in doctor_gpus.gpus(_TOOL_S)}
            rows = doctor_gpus.holders(_TOOL_S)
        except CouldNot as reason:
            return [], {"why": reason.why, "message": reason.message}
        found = [(int(row["pid"]), mib_of(row), index.get(row.get("uuid"), "?")) for row in rows]
        return [{"pid": pid, "mib": mib, "gpu": gpu} for pid, mib, gpu in found], None

    def kinds(self) -> "dict[int, str]":
        """pid -> kind, of every orphan. A run of ours that is looked after is none, nor is another's."""
        found = {}
        for pid, proc in self.everyone.items():
            if proc.zombie or pid == os.getpid():
                continue
            run = self.ours.get(pid) or self.others.get(pid)
            if run and (run in self.lost if pid in self.ours else not self._above(pid)):
                found[pid] = "no-supervisor"
            elif not run and "sglang::" in procs.title(pid) and not self.launched(pid):
                found[pid] = "no-launcher"
        for pid, mib in self._mib().items():
            if mib >= _LEAST_MIB and pid in self.everyone and not self.ours.get(pid) and not self.others.get(pid):
                found.setdefault(pid, "gpu-memory")
        return found

    def why_not(self, pid: int) -> str:
        """Why a process is no orphan."""
        if run := self.ours.get(pid):
            return f"belongs to run {run}, which is looked after: hsops stop --run {run}"
        if run := self.others.get(pid):
            return f"belongs to run {run} of another state folder, which is looked after"
        return "is no orphan: no rank without its launcher, and it holds no GPU memory as far as nvidia-smi tells"

    def told(self, pid: int, kind: str) -> "dict[str, Any]":
        """One orphan, for the client."""
        proc, rows = self.everyone[pid], [row for row in self.apps if row["pid"] == pid]
        below = sorted(procs.below([pid], self.everyone))
        return {
            "pid": pid,
            "start": proc.start,
            "kind": kind,
            "command": procs.title(pid)[:200] or f"[{proc.comm}]",
            "user": _user(pid),
            "age_s": round(max(0.0, _uptime() - proc.start / os.sysconf("SC_CLK_TCK")), 1),
            "gpu_mib": sum(row["mib"] for row in rows),
            "gpus": sorted({row["gpu"] for row in rows}),
            "run": self.ours.get(pid) or self.others.get(pid),
            "below": below,
            "refused": self._refused(pid, kind, below),
        }

    def _refused(self, pid: int, kind: str, below: "list[int]") -> str:
        if any(_uid(one) not in (None, os.geteuid()) for one in (pid, *below)):
            return f"it is {_user(pid)}'s, or something below it is another user's: ask them"
        if run := self.others.get(pid):
            return f"it is of run {run} of another state folder: hsops stop --run {run} with that folder's inventory"
        if cared := self._cared(below):  # a subreaper adopts whatever loses its parent below it
            return f"pid {cared} below it is of a run that is looked after, or its supervisor: stop that run first"
        if os.getpid() in below or pid == 1:
            return "this very command is below it"
        if kind == "gpu-memory" and not any(sign in path for path in procs.files(pid) for sign in _CUDA):
            return "nvidia-smi names this pid, and the process has no GPU open: the pid is one of another container"
        return ""

    def _cared(self, pids: "list[int]") -> "int | None":
        """One of ``pids`` that belongs to a run which is not lost, or looks after one."""
        for pid in pids:
            run = self.ours.get(pid)
            if pid in self.others or (run and run not in self.lost) or _cares(pid):
                return pid
        return None

    def _mib(self) -> "dict[int, int]":
        held: dict[int, int] = {}
        for row in self.apps:
            held[row["pid"]] = held.get(row["pid"], 0) + row["mib"]
        return held

    def launched(self, pid: int) -> bool:
        """Up the tree from one of SGLang's processes stands its launcher: another Python that is no ``sglang::``.

        Whoever adopted an orphan has no SGLang and is no Python: init, a shell, a container's first process. A rank
        keeps its launcher's session, so a Python in another one (a subreaper that runs jobs) has adopted it.
        """
        proc = self.everyone[pid]
        while parent := self.everyone.get(proc.ppid):
            title = procs.title(parent.pid)
            if not title.startswith("sglang::"):
                python = "python" in parent.comm or "python" in title or "sglang" in title or title.startswith("ray::")
                return python and not parent.zombie and (parent.session == proc.session or "sglang" in title)
            proc = parent
        return False

    def _above(self, pid: int) -> bool:
        while proc := self.everyone.get(pid):
            if _cares(pid):
                return True
            pid = proc.ppid
        return False


def _cares(pid: int) -> bool:
    """It is a run's supervisor."""
    title = procs.title(pid)
    return "run-exec" in title or "job-exec" in title


def _uid(pid: int) -> "int | None":
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _user(pid: int) -> str:
    uid = _uid(pid)
    try:
        return pwd.getpwuid(uid).pw_name if uid is not None else "?"
    except KeyError:
        return str(uid)


def _uptime() -> float:
    with open("/proc/uptime", encoding="ascii") as file:
        return float(file.read().split()[0])
