"""Runs that are jobs of Slurm: submitted, looked at and cancelled here, on a login node; their processes are elsewhere.

job.json in the run's directory is what is known of the job: ``id`` (null while sbatch has not told it), ``name``,
``state``, ``reason``, ``node``, ``limit``, ``restarts``, ``exit`` (Slurm's ``code:signal``), ``over``.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from typing import Any

from hsops.agent.protocol import Refusal

COMMAND_S = 8.0  # Slurm's commands wait for minutes when slurmctld does not answer
SUBMIT_S = 15.0
END_S = 60.0  # Slurm's KillWait is 30 s, and an epilog may follow
_LATE_S = 120.0
_FRESH_S, _LONGEST_S = 1.0, 15.0  # whoever follows a run asks less and less often: a controller has many users
_MUTE_S = 15.0  # a controller that was silent: not asked for the next run, one verb has no time to wait for each
_CLIENTS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun")
_STORE = re.compile(r"^AccountingStorageType\s*=\s*(\S+)", re.MULTILINE).search
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_ENDED = re.compile("COMPLETED|CANCELLED|FAILED|TIMEOUT|NODE_FAIL|PREEMPTED|OUT_OF_MEMORY|DEADLINE|BOOT_FAIL").match
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_SILENT = re.compile(r"Unable to contact|Connection refused|timed out").search
_looked: "dict[str, tuple[float, float, dict[str, Any]]]" = {}  # by run: when to ask next, the pause then, the job
_silent: "dict[str, tuple[float, str]]" = {}  # by folder of commands: until when, and what was said


def told(folder: str, *argv: str, seconds: float = COMMAND_S) -> str:
    """What a command of Slurm prints. ``folder``: where it lies; "": on the PATH.

    Raises:
        Refusal: no-slurm, slurm-silent (no answer, or not from slurmctld), slurm-refused.
    """
    path = _path(folder)
    env = {**os.environ, "PATH": path}
    if argv[0] != "sbatch":  # which hands its environment on, to the server
        env.update(LC_ALL="C", SLURM_TIME_FORMAT="%s")
    try:
        program = shutil.which(argv[0], path=path)
        if not program:
            raise Refusal("no-slurm", f"there is no {argv[0]} on this host", command=argv[0])
        done = subprocess.run(
            [program, *argv[1:]], env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise Refusal("slurm-silent", f"{argv[0]} gave no answer in {seconds:g} s") from None
    said = re.sub(r"(?m)^\w+: (error: )?", "", done.stderr.decode(errors="replace")).strip()
    if done.returncode:
        code = "slurm-silent" if _SILENT(said) else "slurm-refused"
        raise Refusal(code, f"{argv[0]}: {' '.join(said.split())[:400] or f'exit {done.returncode}'}")
    return done.stdout.decode(errors="replace")


def _path(folder: str) -> str:
    return os.pathsep.join(filter(None, (os.path.expanduser(folder), os.environ.get("PATH", os.defpath))))


def survey(folder: str, sinfo: "list[str]", seconds: float) -> "dict[str, Any]":
    """Before anything is submitted: commands that it ``lacks``, ``partitions`` as sinfo prints them, ``accounting``:
    where it keeps jobs, "" when not known; ``trouble``: why it could not be asked.
    """
    lacks = [name for name in _CLIENTS if not shutil.which(name, path=_path(folder))]
    found: dict[str, Any] = {"lacks": lacks, "partitions": "", "accounting": "", "trouble": ""}
    until = time.monotonic() + seconds
    try:
        found["partitions"] = told(folder, "sinfo", *sinfo, seconds=seconds)
        config = _STORE(told(folder, "scontrol", "show", "config", seconds=max(0.1, until - time.monotonic())))
        found["accounting"] = config.group(1) if config else ""
    except Refusal as refusal:
        found["trouble"] = "" if refusal.code == "no-slurm" else refusal.message
    return found


def inside(job: "dict[str, Any]") -> bool:
    """This process is one of the job's: its processes can be looked at in /proc here."""
    return bool(job.get("id")) and os.environ.get("SLURM_JOB_ID") == str(job["id"])


def submit(run: Any, asked: "dict[str, Any]", secrets: "dict[str, Any]") -> None:
    """Hand a run to Slurm.

    Args:
        run: its directory (``RunDir``), with its spec.json.
        asked: ``script`` and ``options`` for sbatch, with ``{run_dir}`` and ``{command}`` to be filled in; ``bin``:
            the folder of Slurm's commands, "": the PATH.
        secrets: ``argv`` and ``env`` of the server, which only the compute node completes.

    Raises:
        Refusal: as ``told``.
    """
    agent, dump_dir = os.path.join(run.path, "agent.pyz"), run.read("spec.json")["dump_dir"]
    if dump_dir:
        run.write(mark(dump_dir), {"run": run.id})
    run.write("secrets.json", secrets)
    shutil.copyfile(os.path.abspath(sys.argv[0]), agent)  # a job may wait for weeks: that in use here may be pruned
    filled = {"{run_dir}": run.path, "{command}": shlex.join([sys.executable, "-I", agent, "job-exec"])}
    script, *options = [_filled(text, filled) for text in (asked["script"], *asked["options"])]
    path = os.path.join(run.path, "job.sh")
    with open(path, "w", encoding="utf-8") as file:
        file.write(script)
    job: dict[str, Any] = {"id": None, "name": f"hsops-{run.id}", "bin": asked["bin"], "state": "PENDING"}
    run.write("job.json", job)
    try:
        line = told(job["bin"], "sbatch", "--parsable", f"--job-name={job['name']}", *options, path, seconds=SUBMIT_S)
    except Refusal as refusal:
        if refusal.code != "slurm-silent":  # else it may have been taken all the same: by its name it is found
            shutil.rmtree(run.path, ignore_errors=True)
        raise
    run.write("job.json", {**job, "id": line.strip().splitlines()[-1].split(";")[0]})


def mark(dump_dir: str) -> str:
    """A file of the dump folder that the compute node must see too, or nobody would find a dump."""
    return os.path.join(dump_dir, ".login.json")


def _filled(text: str, known: "dict[str, str]") -> str:
    for word, value in known.items():
        text = text.replace(word, value)
    return text


def look(run: Any) -> "dict[str, Any]":
    """job.json as it is now; ``trouble``: why Slurm could not be asked, then it is as it was last."""
    job: dict[str, Any] = run.read("job.json")
    due, wait, known = _looked.get(run.path, (0.0, _FRESH_S, {}))
    if not job or job.get("over") or inside(job):
        return job
    if time.monotonic() < due:
        return known
    until, said = _silent.get(job["bin"], (0.0, ""))
    if time.monotonic() < until:
        return {**job, "trouble": said}
    try:
        fresh = {**job, **_ask(job, run)}
        if fresh.get("over"):
            fresh["said"] = _said(run)
        kept = {name: value for name, value in fresh.items() if name not in ("place", "of", "on_hold")}
        if kept != job:
            with contextlib.suppress(OSError):
                run.write("job.json", kept)
    except Refusal as refusal:
        fresh = {**job, "trouble": refusal.message}
        if refusal.code == "slurm-silent":
            _silent[job["bin"]] = (time.monotonic() + _MUTE_S, refusal.message)
    _looked[run.path] = (time.monotonic() + wait, min(1.2 * wait, _LONGEST_S), fresh)
    return fresh


def holds(run: Any) -> bool:
    """It is a job that is not over, whatever became of its server: it has its node, or will."""
    job = look(run)
    return bool(job) and not job.get("over")


def _ask(job: "dict[str, Any]", run: Any) -> "dict[str, Any]":
    folder = job["bin"]
    if not job["id"]:
        found = told(folder, "squeue", "-h", "-t", "all", f"--name={job['name']}", "-o", "%A").split()
        if not found:
            age = time.time() - run.read("spec.json").get("created", 0.0)
            return {"over": age > _LATE_S, "state": "NOT_SUBMITTED"}  # a busy controller may still have it before it
        job = {**job, "id": found[0]}
    try:
        text = told(folder, "scontrol", "-o", "show", "job", job["id"])
    except Refusal as refusal:
        if "Invalid job id" not in refusal.message:
            raise
        return _accounted(job)  # forgotten after MinJobAge
    f = dict(reversed(_FIELD.findall(text)))
    state, starts = f.get("JobState", "UNKNOWN"), f.get("StartTime", "")
    fresh = {
        "id": job["id"], "state": state, "reason": f.get("Reason", "").replace("None", ""),
        "node": f.get("NodeList", "").replace("(null)", ""), "partition": f.get("Partition", ""),
        "exit": f.get("ExitCode", ""), "limit": f.get("TimeLimit", ""), "restarts": int(f.get("Restarts") or 0),
        "starts": float(starts) if starts.isdigit() else None, "over": bool(_ENDED(state)),
    }  # fmt: skip
    if state not in _WAITS:
        return fresh
    # a held job has no priority; that of one that waits for another job, or for its time, may not be reckoned yet
    fresh["on_hold"] = f.get("Priority") == "0" and fresh["reason"] not in ("Dependency", "BeginTime")
    return {**fresh, **_place(folder, job["id"], fresh["partition"])}


def _accounted(job: "dict[str, Any]") -> "dict[str, Any]":
    """By the accounting, if there is one."""
    try:
        asked = ("sacct", "-n", "-P", "-X", "-j", job["id"], "-o", "State,ExitCode,NodeList")
        if lines := told(job["bin"], *asked).strip().splitlines():
            state, exit_, node = lines[-1].split("|")
            return {"state": state.split()[0], "exit": exit_, "node": node, "over": True}
    except Refusal as refusal:
        if refusal.code == "slurm-silent":
            raise
    return {"state": job["state"] if _ENDED(job["state"]) else "FORGOTTEN", "over": True}


def _place(folder: str, job: str, partition: str) -> "dict[str, Any]":
    with contextlib.suppress(Refusal):
        waiting = told(folder, "squeue", "-h", "-t", "PD", "-p", partition, "-S", "-p,i", "-o", "%A").split()
        if job in waiting:
            return {"place": waiting.index(job) + 1, "of": len(waiting)}
    return {}


def _said(run: Any) -> str:
    """The end of the job's own output: what Slurm's daemons had to say, and whoever was before the server."""
    try:
        with open(os.path.join(run.path, "job.log"), encoding="utf-8", errors="replace") as file:
            return file.read()[-1500:]
    except OSError:
        return ""


def state(run: Any, record: "dict[str, Any]") -> "dict[str, Any]":
    """state.json with the phase as Slurm tells it: the pids in it are of another host.

    ``pending`` until the supervisor of this start of the job has written it; a job that is requeued starts again.
    """
    job = look(run)
    if job.get("over"):
        stopped = os.path.exists(os.path.join(run.path, "stop.json"))
        if record.get("phase", "running") in ("running", "pending"):
            record = {**record, "phase": "stopped" if stopped else "exited", "restart_at": None}
            record.setdefault("exit", None)
        return {**record, "job": job}
    begun = job["state"] not in _WAITS and record.get("job_restarts") == job.get("restarts", 0)
    return {**record, "job": job} if begun else {**record, "phase": "pending", "pid": 0, "exit": None, "job": job}


def end(run: Any) -> "dict[str, Any]":
    """Cancel the job and wait until Slurm says that it is over; the job as it is then.

    Raises:
        Refusal: as ``told``.
    """
    job, asked, until = look(run), "", time.monotonic() + END_S
    if job.get("trouble"):
        raise Refusal("slurm-silent", job["trouble"])
    while not job.get("over") and time.monotonic() < until:
        which = str(job["id"] or f"--name={job['name']}")  # sbatch was cut off: it may be known by its name only
        if which != asked:
            told(job["bin"], "scancel", which)
            asked = which
        time.sleep(0.5)
        _looked.pop(run.path, None)
        job = look(run)
    return job
