"""The run directory ``<state_dir>/runs/<run id>/``: spec.json, state.json, events.jsonl, server.log, stop.json.

secrets.json has the command line where spec.json has one without keys.
"""

import contextlib
import errno
import glob
import json
import os
import re
import time
from typing import Any

from hsops.agent import procs, slurm
from hsops.agent.protocol import Refusal

STARTING_S = 20.0  # from a run's spec to the start of its server by its supervisor; it takes ~0.1 s on a calm host
_ALIVE = ("running", "pending")
RUN_ID = re.compile(r"^\d{4}-\d{6}-[0-9a-f]{4}$")


class RunDir:
    """One run's files. Every write: temporary name, fsync, rename; events are appended."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.id = os.path.basename(path)
        self.log = os.path.join(path, "server.log")

    def read(self, name: str) -> "dict[str, Any]":
        """A JSON file of the run; ``{}`` when it is not there."""
        return read_json(os.path.join(self.path, name))

    def write(self, name: str, value: "dict[str, Any]") -> None:
        """A JSON file of the run, whole or not at all."""
        write_json(os.path.join(self.path, name), value)

    def event(self, kind: str, **fields: Any) -> None:
        """One line for events.jsonl; none when the disk is full, which must not end the watch over a live server."""
        line = json.dumps({"time": time.time(), "kind": kind, **fields}) + "\n"
        with contextlib.suppress(OSError), open(os.path.join(self.path, "events.jsonl"), "a", encoding="utf-8") as file:
            file.write(line)

    def argv(self) -> "list[str]":
        """The server's command line, with its keys, as long as the server or secrets.json has them."""
        spec = self.read("spec.json")
        argv = self.read("secrets.json").get("argv") or spec.get("argv") or []
        argv = [str(spec["port"]) if word == "{port}" and spec.get("port") else word for word in argv]
        state = self.read("state.json") if _lacks_keys(argv) else {}
        alive = state and procs.is_alive(state.get("pid", 0), state.get("start", 0))
        return procs.argv(state["pid"]) if alive else argv  # somebody removed the file: the server itself still tells

    def launch_argv(self) -> "list[str]":
        """As ``argv``, to start it with.

        Raises:
            OSError: the keys are gone; a server that got ``***`` for one would let everybody in who types that.
        """
        argv = self.argv()
        if not argv or _lacks_keys(argv):
            raise OSError(errno.ENOENT, "its keys are gone, so it is not started", f"{self.path}/secrets.json")
        return argv

    def mark(self) -> str:
        """What its processes carry: its id, and on further nodes which one, as two nodes may be one machine."""
        rank = (self.read("spec.json").get("node") or {}).get("rank")
        return f"{self.id}/{rank}" if rank else self.id

    def attempt(self) -> int:
        """How often the server was started, counted from 1."""
        return int(self.read("state.json").get("attempt", 1))

    def log_of(self, attempt: int) -> str:
        """Where the log of an attempt lies that has ended and was followed by another."""
        return os.path.join(self.path, f"server.{attempt}.log")

    def stamp(self, name: str) -> "tuple[int, int]":
        """Changes whenever the file does."""
        try:
            found = os.stat(os.path.join(self.path, name))
        except OSError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)

    def describe(self, snapshot: "procs.Snapshot | None" = None) -> "dict[str, Any]":
        """The run for ``run-list``: spec and state in one, with the phase as it is now."""
        spec, state = self.read("spec.json"), self.state()
        names = ("server", "tp", "port", "spec_hash", "dump_dir", "patches", "sglang", "node")
        return {
            "id": self.id,
            **{name: spec.get(name) for name in names},
            "argv": self.argv(),
            "directory": self.path,
            "log": self.log,
            "pid": state.get("pid", 0),
            "started": state.get("started", spec.get("created", 0.0)),
            "phase": state["phase"],
            "exit": state.get("exit"),
            "ranks": dict(sorted(state.get("ranks", {}).items(), key=lambda pair: (len(pair[0]), pair[0]))),
            "helpers": state.get("helpers", {}),
            "rank_pids": state.get("rank_pids", {}),
            "attempt": state.get("attempt", 1),
            "attempts": state.get("attempts", []),
            "restart_at": state.get("restart_at"),
            "not_restarted": state.get("not_restarted", ""),
            "restarts": bool(spec.get("restart")),
            "served": state.get("served", False),
            "job": state.get("job") or self.read("job.json") or None,
            "hellos": self.hellos(spec.get("dump_dir", "")),
            "uptime_s": max(0.0, self._until(state) - state.get("started", time.time())),
            "left": [p.pid for p in self.processes(state, snapshot)] if state["phase"] not in _ALIVE else [],
        }

    @staticmethod
    def _until(state: "dict[str, Any]") -> float:
        return float((state.get("exit") or {}).get("time", time.time()))

    def state(self) -> "dict[str, Any]":
        """state.json with the phase as it is now: ``running`` only while the server's own process is there.

        The record may be older than a crash of the supervisor, or a moment older than the end it is about to tell.
        """
        state = self.read("state.json")
        if (job := self.read("job.json")) and not slurm.inside(job):
            return slurm.state(self, state)
        state = state or {"phase": "lost"}
        if state["phase"] != "running":
            return state
        same_boot = state.get("boot") == procs.boot_id()
        if same_boot and procs.is_alive(state["pid"], state["start"]):
            return state
        if same_boot and procs.is_alive(*state["supervisor"]):
            return state
        fresh = self.read("state.json")
        return fresh if fresh.get("phase") != "running" else {**fresh, "phase": "lost"}

    def running(self) -> bool:
        """The server is there, or its end is not told yet, or its job waits."""
        return self.state()["phase"] in _ALIVE

    def busy(self) -> bool:
        """It is running, or its job is not over, whatever became of the server."""
        return self.running() or slurm.holds(self)

    def hellos(self, dump_dir: str) -> "list[dict[str, Any]]":
        """What the capture of each process of this run says of itself; a file being written waits for the next look.

        What was said once is kept: somebody may empty the dump folder, and the ranks say it only when they start.
        """
        if not dump_dir:
            return []
        paths = glob.glob(os.path.join(glob.escape(dump_dir), "hello", f"{self.id}.*.json"))
        found = {os.path.basename(path): said for path in paths if (said := read_json(path))}
        kept = self.read("hellos.json")
        if not found.items() <= kept.items():
            kept.update(found)
            with contextlib.suppress(OSError):  # a full disk: what is there now is told all the same
                self.write("hellos.json", kept)
        return [kept[name] for name in sorted(kept)]

    def processes(self, state: "dict[str, Any]", snapshot: "procs.Snapshot | None" = None) -> "list[procs.Proc]":
        """All that belongs to the run and lives, never the supervisor itself, never a zombie.

        That is the server's tree, what its supervisor cares for, and, should both be gone, what carries the run's mark
        or writes to its log.
        """
        job = self.read("job.json")
        if state.get("boot") not in (None, procs.boot_id()) or (job and not slurm.inside(job)):
            return []
        snapshot = snapshot or procs.Snapshot()
        everyone, supervisor = snapshot.everyone, state.get("supervisor", [0, 0])
        own = (supervisor, (state.get("pid", 0), state.get("start", 0)))
        roots = {pid for pid, start in own if _is(everyone, pid, start)} | snapshot.shows(
            self.mark(), os.path.realpath(self.log)
        )
        wanted = (procs.below(list(roots), everyone) | roots) - {supervisor[0], os.getpid()}
        return [everyone[pid] for pid in sorted(wanted) if not everyone[pid].zombie]


def _lacks_keys(argv: "list[str]") -> bool:
    return any(word == "***" or word.endswith("=***") for word in argv)


def _is(everyone: "dict[int, procs.Proc]", pid: int, start: int) -> bool:
    return pid in everyone and everyone[pid].start == start


def runs_folder(params: "dict[str, Any]") -> str:
    """``<state_dir>/runs``."""
    return os.path.join(os.path.expanduser(params["state_dir"]), "runs")


def all_runs(folder: str) -> "list[RunDir]":
    """Every run, newest first."""
    found = [RunDir(os.path.join(folder, name)) for name in _names(folder) if RUN_ID.match(name)]
    return sorted(found, key=lambda run: (run.read("spec.json").get("created", 0.0), run.id), reverse=True)


def find_run(params: "dict[str, Any]") -> RunDir:
    """The run that ``params["run"]`` names.

    Raises:
        Refusal: ``no-such-run``.
    """
    name = str(params.get("run"))
    run = RunDir(os.path.join(runs_folder(params), name))
    if not RUN_ID.match(name) or not os.path.isdir(run.path):
        raise Refusal("no-such-run", f"there is no run {name}", run=name)
    return run


def write_json(path: str, value: "dict[str, Any]") -> None:
    """Write a file whole or not at all, readable by the owner only."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_json(path: str) -> "dict[str, Any]":
    """The object in a JSON file; ``{}`` when there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _names(folder: str) -> "list[str]":
    try:
        return os.listdir(folder)
    except OSError:
        return []
