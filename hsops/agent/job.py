"""``job-exec``: on a compute node, under srun, the supervisor of a run whose job has just been given its place."""

import contextlib
import os
import socket
import sys
import time
from typing import Any

from hsops.agent import procs, restart, runs, slurm
from hsops.agent.protocol import Refusal
from hsops.agent.rundir import RunDir
from hsops.agent.supervisor import Supervisor, stand_alone


def execute(_: "dict[str, Any]") -> None:
    """Start the server of the run whose directory this agent lies in, stay until nothing of it is left, exit as it did.

    A job that Slurm has requeued comes here again: that is one more attempt of the same run.
    """
    run = RunDir(os.path.dirname(os.path.abspath(sys.argv[0])))
    if restart.stop_asked(run):
        return
    before = _before(run)
    stand_alone()
    try:
        spec = _settled(run)
        supervisor = Supervisor(run, runs.environment(run, run.read("secrets.json").get("env") or {}))
        supervisor.argv = [str(spec["port"]) if word == "{port}" else word for word in run.launch_argv()]
        supervisor.start(before)
    except (OSError, Refusal) as error:
        said = error.message if isinstance(error, Refusal) else f"{error.filename or run.id}: {error.strerror}"
        with contextlib.suppress(OSError), open(run.log, "a", encoding="utf-8") as log:
            log.write(f"hsops: not started on {before['node']}: {said}\n")
        exit_ = {"code": 127, "signal": "", "oom": False, "time": time.time()}
        run.write("state.json", {**before, "phase": "exited", "exit": exit_, "boot": procs.boot_id()})
        sys.exit(127)
    supervisor.care()
    end = supervisor.state["exit"] or {}
    sys.exit(1 if end.get("signal") else int(end.get("code") or 0))


def _before(run: RunDir) -> "dict[str, Any]":
    """What state.json says of this start of the job, and of those before it."""
    here = {"job_restarts": int(os.environ.get("SLURM_RESTART_COUNT") or 0), "node": socket.gethostname()}
    last = run.read("state.json")
    if not last.get("attempt"):
        return here
    with contextlib.suppress(OSError):
        restart.put_aside(run, last["attempt"])
    ended = {name: last[name] for name in ("attempt", "started", "exit", "ranks", "helpers")}
    return {**here, "attempt": last["attempt"] + 1, "attempts": [*last["attempts"], ended]}


def _settled(run: RunDir) -> "dict[str, Any]":
    """The spec with what only this host can tell: a free port, and that dumps can be written."""
    spec = run.read("spec.json")
    port = runs.free_port(spec["wanted_port"], spec["listen"])
    folder = runs.dump_folder(spec["dump_dir"])
    if folder and run.read(slurm.mark(folder)).get("run") != run.id:
        raise Refusal("not-shared", f"the login node sees another {folder}, or it was emptied while the job waited")
    spec["port"] = port
    run.write("spec.json", spec)
    return spec
