"""``run-stop``: the run's whole process tree, and nothing else."""

import os
import signal
import time
from typing import Any

from hsops.agent import audit, lock, procs
from hsops.agent.rundir import RunDir, find_run

_KILL_S = 15.0  # a process in an uninterruptible sleep (a wedged GPU driver) outlives SIGKILL for a while
_TRACKER = "multiprocessing.resource_tracker"  # unlinks the shared memory of the others once they are gone
_TRACKER_S = 3.0  # for that; killed with the rest it would leave 24 MB of /dev/shm behind for every run
_END_S = 5.0  # for the supervisor to reap the last one and write the end


def stop(params: "dict[str, Any]") -> "dict[str, Any]":
    """End a run. ``params``: run; grace, seconds between SIGTERM to the server and SIGKILL to its whole tree; ``lock``.

    Result: ``{"run", "ended": [{"pid", "command", "by"}], "left": [...], "seconds", "beside"}``; ``by``: TERM or KILL;
    ``beside``: who holds the host's lock meanwhile, when ``lock.force`` was given; else null.

    Raises:
        Refusal: no-such-run, locked, lock-lost (``lock.held``).
    """
    run = find_run(params)
    with lock.held(params) as held, held.kept_alive():
        ended = {**_end(run, params), "beside": held.beside}
        told = {"action": "stop", **lock.who(params), "server": ended["run"]["server"], "run": run.id}
        beside = held.beside and held.beside["who"]
        outcome = f"{len(ended['left'])} processes left" if ended["left"] else "done"
        audit.append(params["state_dir"], {**told, "beside": beside, "outcome": outcome})
        return ended


def _end(run: RunDir, params: "dict[str, Any]") -> "dict[str, Any]":
    state = run.read("state.json")
    began = time.monotonic()
    known = {p.pid: (p, procs.role(procs.title(p.pid)) or procs.title(p.pid)[:120]) for p in run.processes(state)}
    if known or run.running():  # between two attempts there is no process
        run.write("stop.json", {"time": time.time(), "by": os.environ.get("USER", "")})
        run.event("stopping", processes=len(known))
    if state.get("pid") and procs.send(state["pid"], state["start"], signal.SIGTERM):
        _wait(lambda: not procs.is_alive(state["pid"], state["start"]), float(params.get("grace", 10.0)))
    forced: set[int] = set()
    spare_until = time.monotonic() + _TRACKER_S
    _wait(lambda: not _kill_rest(run, state, known, forced, spare_until), _KILL_S)
    _settle(run, state)
    ended = [_row(pid, name, forced) for pid, (p, name) in known.items() if not procs.is_alive(pid, p.start)]
    left = [{"pid": p.pid, "command": procs.title(p.pid)[:120], "state": p.state} for p in run.processes(state)]
    return {"run": run.describe(), "ended": ended, "left": left, "seconds": round(time.monotonic() - began, 2)}


def _kill_rest(
    run: RunDir, state: "dict[str, Any]", known: "dict[int, Any]", forced: "set[int]", spare_until: float
) -> bool:
    """SIGKILL whatever of the run lives; True when there was something. Looked at anew: a dying tree may still fork."""
    rest = run.processes(state)
    spare = time.monotonic() < spare_until
    for proc in rest:
        title = procs.title(proc.pid)
        known.setdefault(proc.pid, (proc, procs.role(title) or title[:120]))
        if spare and _TRACKER in title:
            continue
        if procs.send(proc.pid, proc.start, signal.SIGKILL):
            forced.add(proc.pid)
    return bool(rest)


def _settle(run: RunDir, state: "dict[str, Any]") -> None:
    """Let the supervisor write the end; write it ourselves when there is none any more."""
    supervisor = state.get("supervisor")
    if supervisor:
        _wait(lambda: not procs.is_alive(*supervisor), _END_S)
    last = run.read("state.json")
    if last.get("phase") == "running" and not (supervisor and procs.is_alive(*supervisor)):
        run.write("state.json", {**last, "phase": "stopped"})


def _row(pid: int, name: str, forced: "set[int]") -> "dict[str, Any]":
    return {"pid": pid, "command": name, "by": "KILL" if pid in forced else "TERM"}


def _wait(done: Any, seconds: float) -> bool:
    """Look every 20 ms until ``done()`` or the time is over."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
