"""``run-stop``: the run's whole process tree, and nothing else; and proof that it is gone."""

import contextlib
import os
import signal
import time
from typing import Any

from hsops.agent import audit, lock, procs, slurm
from hsops.agent.ending import Ending, outlive_client, until
from hsops.agent.full_disk import Unwritten
from hsops.agent.proof import GPU_S, Proof
from hsops.agent.protocol import Refusal
from hsops.agent.restart import stop_asked
from hsops.agent.rundir import STARTING_S, RunDir, all_runs, find_run, runs_folder

_END_S = 5.0  # for the supervisor to reap the last one and write the end


def stop(params: "dict[str, Any]") -> "dict[str, Any]":
    """End runs. ``params``: ``run``, or ``server``: all of its runs that have a process left; grace, seconds between
    SIGTERM to the server and SIGKILL to its whole tree; ``gpu_s``, how long to wait for GPU memory; ``lock``.

    The server's runs are looked for under the lock: one that another client is just starting is ended too.

    Result: ``stopped`` [{``run``, ``ended`` [{``pid``, ``command``, ``by``: TERM or KILL}], ``left``, ``seconds``,
    ``proof``: ``Proof.told``, null when there was nothing to end}], ``beside``: who holds the host's lock meanwhile,
    when ``lock.force`` was given; else null; ``unwritten``: sentences, what a full disk did not take.

    Raises:
        Refusal: no-such-run, locked, lock-lost (``lock.held``), disk-full (``Unwritten``).
    """
    lacks = Unwritten(params)
    with lacks.locked() as held:
        outlive_client()
        wanted = [find_run(params)] if params.get("run") else _of_server(params)
        stopped = [_stop(run, params, held.beside, lacks) for run in wanted]
        return {"stopped": stopped, "beside": held.beside, "unwritten": lacks.told}


def _of_server(params: "dict[str, Any]") -> "list[RunDir]":
    runs = [run for run in all_runs(runs_folder(params)) if run.read("spec.json").get("server") == params["server"]]
    for run in runs:  # with force a launch may be under way beside this, which has no state yet
        age = time.time() - run.read("spec.json").get("created", 0.0)
        if 0 <= age < STARTING_S and not run.read("job.json"):
            until(lambda run=run: bool(run.read("state.json")), STARTING_S - age)  # type: ignore[misc]
    snapshot = procs.Snapshot()
    return [run for run in runs if run.busy() or run.processes(run.read("state.json"), snapshot)]


def _stop(run: RunDir, params: "dict[str, Any]", beside: "dict[str, Any] | None", lacks: Unwritten) -> "dict[str, Any]":
    ended = _cancel(run, lacks) if run.read("job.json") else _end(run, params, lacks)
    told = {"action": "stop", **lock.who(params), "server": ended["run"]["server"], "run": run.id}
    outcome, job = f"{len(ended['left'])} processes left" if ended["left"] else "done", ended["run"]["job"]
    if job and not job.get("over"):
        outcome = f"job {job['id']} is {job['state']}"
    with lacks.writing("its line of the audit log"):
        audit.append(params["state_dir"], {**told, "beside": beside and beside["who"], "outcome": outcome})
    return ended


def _cancel(run: RunDir, lacks: Unwritten) -> "dict[str, Any]":
    """A job: Slurm ends its processes, on whatever host they are, and says when that is done."""
    began, state, asked = time.monotonic(), run.state(), stop_asked(run)
    if slurm.holds(run) and not asked:
        with lacks.writing("stop.json of the run", must=True):
            run.write("stop.json", {"time": time.time(), "by": os.environ.get("USER", "")})
    try:
        job = slurm.end(run)
    except Refusal:
        if not asked:  # it lives on: its end will be another's doing, and should it be requeued it starts again
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(run.path, "stop.json"))
        raise
    names = {**state.get("rank_pids", {}), "server": state.get("pid")} if state["phase"] == "running" else {}
    ended = [{"pid": pid, "command": name, "by": "SLURM"} for name, pid in names.items() if pid]
    over = bool(job.get("over"))
    with lacks.writing("state.json of the run"):
        last = run.read("state.json")
        if over and last.get("phase") == "running":
            run.write("state.json", {**last, "phase": "stopped"})
    seconds = round(time.monotonic() - began, 2)  # nobody can say here which of its processes are left: its job tells
    return {"run": run.describe(), "ended": ended if over else [], "left": [], "seconds": seconds, "proof": None}


def _end(run: RunDir, params: "dict[str, Any]", lacks: Unwritten) -> "dict[str, Any]":
    state = run.read("state.json")
    began = time.monotonic()
    ending = Ending(lambda: run.processes(run.read("state.json")))  # anew: a restart policy may be at work
    since = run.read("spec.json").get("created")
    proof = Proof(ending.pids, float(params.get("gpu_s", GPU_S)), since) if ending.known else None
    same_boot = state.get("boot") == procs.boot_id()  # else its start time may be another's
    if ending.known or run.running():  # between two attempts there is no process
        with lacks.writing("stop.json of the run", must=True):
            run.write("stop.json", {"time": time.time(), "by": os.environ.get("USER", "")})
        if same_boot and not stop_asked(run) and run.read("spec.json").get("restart"):
            pid, start = state["supervisor"]
            procs.send(pid, start, signal.SIGKILL)  # it would start the server again
        run.event("stopping", processes=len(ending.known))
    server = [(state["pid"], state["start"])] if same_boot and state.get("pid") else []
    ending.end(server, float(params.get("grace", 10.0)), proof.note if proof else lambda _: None)
    with lacks.writing("state.json of the run"):
        _settle(run, state)
    ended, left = ending.ended(), ending.left()
    seconds = round(time.monotonic() - began, 2)
    told = proof and proof.told(run.read("spec.json").get("port"))
    return {"run": run.describe(), "ended": ended, "left": left, "seconds": seconds, "proof": told}


def _settle(run: RunDir, state: "dict[str, Any]") -> None:
    """Let the supervisor write the end; write it ourselves when there is none any more."""
    supervisor = state.get("supervisor")
    if supervisor and state.get("boot") == procs.boot_id():
        pid, start = supervisor
        procs.send(pid, start, signal.SIGCONT)  # somebody has stopped it: it would stay, and the run seem to run
    if supervisor:
        until(lambda: not procs.is_alive(*supervisor), _END_S)
    last = run.read("state.json")
    if last.get("phase") == "running" and not (supervisor and procs.is_alive(*supervisor)):
        run.write("state.json", {**last, "phase": "stopped"})
