"""``run-exec``: the one process of hsops that stays on a host, for as long as its server has a process left.

It is a subreaper, so whatever the server leaves behind becomes its child and is reaped here; a pidfd for the server and
for every rank wakes it the moment one ends. It writes state.json and events.jsonl. With a restart policy it starts a
server that failed again, under ``restart.decide``.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import sys
import time
from typing import Any

from hsops.agent import oom, procs, restart
from hsops.agent.rundir import RunDir

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.25  # how often new ranks are looked for: one shows its title some seconds after it starts
_CALM_S = 2.0  # when all have been seen: ends wake it anyway
_ENDING_S = 1.0  # for the rest of an attempt that failed to end by itself, before another
_TRACKER, _TRACKER_S = "multiprocessing.resource_tracker", 5.0  # it unlinks shared memory once the others are gone


def main(params: "dict[str, Any]") -> None:
    """Start the server of ``params["run_dir"]`` and stay until nothing of it is left.

    Writes one JSON line to the file descriptor ``params["ready"]`` when the server has been started, or why not.
    """
    ready = params["ready"]
    stand_alone(keep=ready)
    run = RunDir(params["run_dir"])
    supervisor = Supervisor(run, params["env"])
    try:
        supervisor.start()
        answer: dict[str, Any] = {"pid": supervisor.state["pid"]}
    except OSError as error:
        exit_ = {"code": 127, "signal": "", "oom": False, "time": time.time()}
        supervisor.state = {"phase": "exited", "exit": exit_, "boot": procs.boot_id()}
        supervisor.save()
        answer = {"error": f"{error.filename or run.id}: {error.strerror}"}
    os.write(ready, json.dumps(answer).encode())
    os.close(ready)
    if "pid" in answer:
        supervisor.care()


def stand_alone(keep: int = 3) -> None:
    """Nothing of the caller's is held: an ssh channel closes only when no process has its ends any more."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.closerange(3, keep)
    os.closerange(keep + 1, 4096)
    with contextlib.suppress(OSError):  # there is none under srun
        os.set_inheritable(keep, False)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when its server has; stop ends the server
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _begun(pid: int) -> "dict[str, Any]":
    """state.json of a server that was started just now."""
    me, server = procs.look(os.getpid()), procs.look(pid)
    assert me and server
    return {
        "phase": "running",
        "pid": pid,
        "start": server.start,
        "boot": procs.boot_id(),
        "supervisor": [me.pid, me.start],
        "started": time.time(),
        "exit": None,
        "ranks": {},
        "rank_pids": {},
        "helpers": {},
        "reaped": 0,
        "attempt": 1,
        "attempts": [],  # that ended: attempt, started, exit, ranks, helpers
        "restarts": [],  # when
        "served": False,  # this attempt has listened on its port
    }


class Supervisor:
    """Starts one server and records what becomes of it and of each rank."""

    def __init__(self, run: RunDir, env: "dict[str, str]") -> None:
        self.run, self.env, self.spec = run, env, run.read("spec.json")
        self.oom = oom.OomWatch()
        self.state: dict[str, Any] = {}
        self.argv: list[str] = []  # kept for every attempt: the file with the keys may be gone by then
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, tuple[str, int]] = {}  # pid -> role, pidfd
        self._unnamed: set[int] = set()  # ranks that ended before their titles were read
        self._recorded: set[int] = set()  # whose end is
        self._failed: float | None = None  # when an attempt did that is to be followed by another
        self._wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._selector.register(self._wake, selectors.EVENT_READ)

    @property
    def expected(self) -> "list[str]":
        """The ranks that are to be on this host."""
        node = self.spec.get("node") or {"first": 0, "ranks": int(self.spec.get("tp", 1))}
        return [f"TP{n}" for n in range(node["first"], node["first"] + node["ranks"])]

    def start(self, before: "dict[str, Any] | None" = None) -> None:
        """Start the server: a session of its own, no standard input, all output to the log.

        Args:
            before: what state.json keeps of earlier attempts.

        Raises:
            OSError: it cannot be executed.
        """
        self.argv = argv = self.argv or self.run.launch_argv()
        os.chdir(self.run.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawn(
            argv[0],
            argv,
            self.env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, self.run.log, flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE),
        )
        self.state = {**_begun(pid), **(before or {})}
        self._watch(pid, "server")
        self.run.event("started", pid=pid, attempt=self.state["attempt"])
        self.save()

    def care(self) -> None:
        """Until nothing of the server is left and it is not to be started again."""
        self.watch()
        while (at := self.state.get("restart_at")) and not self._called_off(at):
            told = {name: self.state[name] for name in ("attempt", "started", "exit", "ranks", "helpers")}
            again = {"attempt": told["attempt"] + 1, "attempts": [*self.state["attempts"], told]}
            again |= {name: self.state[name] for name in ("job_restarts", "node") if name in self.state}
            try:
                self._forget()
                restart.put_aside(self.run, told["attempt"])
                self.start({**again, "restarts": [*self.state["restarts"], time.time()]})
            except OSError as error:
                self.state.update(phase="exited", restart_at=None, not_restarted=str(error))
                self.save()
                return
            if restart.stop_asked(self.run):  # meanwhile
                self._end_rest(at_once=True)
            self.watch()

    def _forget(self) -> None:
        """Pids of an attempt that is over may be others' in the next one."""
        for pid in self._watched:
            self._unwatch(pid)
        self._watched, self._unnamed, self._recorded, self._failed = {}, set(), set(), None

    def _called_off(self, at: float) -> bool:
        """Wait until ``at``; True when somebody stops the run before."""
        while not restart.stop_asked(self.run):
            if (left := at - time.time()) <= 0:
                return False
            time.sleep(min(0.1, left))
        self.state.update(phase="stopped", restart_at=None)
        self.save()
        return True

    def watch(self) -> None:
        """Until there is no child left."""
        while self._reap():
            quick = len(self.state["ranks"]) < len(self.expected) or self._failed
            quick = quick or (self.spec.get("restart") and not self.state["served"])
            for key, _ in self._selector.select(_LOOK_S if quick else _CALM_S):
                if key.fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                else:
                    self._ended(key.data)
            self._discover()
            self.oom.look()
            if self.spec.get("restart") and not restart.stop_asked(self.run):
                self._tend()
        self.save()

    def _tend(self) -> None:
        """With a restart policy: note that the server listens, and end all that is left of an attempt that failed."""
        state, now = self.state, time.time()
        if not state["served"] and state["exit"] is None:
            own = [proc.pid for proc in procs.tree(os.getpid())]  # somebody else's listener proves nothing
            if (procs.listener(self.spec["port"], own) or {}).get("pid"):
                state["served"] = True
                self.save()
        grace = self.spec["restart"].get("rank_grace", restart.RANK_GRACE_S)
        ends = [end["time"] for end in (*state["ranks"].values(), *state["helpers"].values()) if end]
        if self._failed is None and state["served"] and ends and now - min(ends) > grace:
            self.run.event("ending", why="a process of it has ended, and the server did not notice")
            self._failed = now - _ENDING_S
        if self._failed is not None:
            self._end_rest()

    def _end_rest(self, *, at_once: bool = False) -> None:
        age = time.time() - (self._failed or 0.0)
        for proc in procs.tree(os.getpid()) if at_once or age >= _ENDING_S else ():
            if at_once or age > _TRACKER_S or _TRACKER not in procs.title(proc.pid):
                procs.send(proc.pid, proc.start, signal.SIGKILL)

    def _reap(self) -> bool:
        """Collect every child that has ended; False when there is none left, alive or dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid in self._watched:
                self._record(pid, status)
            else:
                self.state["reaped"] += 1

    def _discover(self) -> None:
        """Watch processes whose title has become that of a rank or helper."""
        for pid, (_, fd) in list(self._watched.items()):
            if fd < 0:
                proc = procs.look(pid)
                if proc is None or proc.zombie:
                    self._ended(pid)
        for proc in procs.tree(os.getpid()):
            if proc.pid not in self._watched and not proc.zombie:
                role = procs.role(procs.title(proc.pid))
                # a rank that forks (for lscpu, a compiler ...) lends its title to the child until that execs
                if role and procs.role(procs.title(proc.ppid)) != role:
                    self._watch(proc.pid, role)
            elif proc.zombie and proc.comm.startswith("sglang::sched"):
                self._nameless(proc)
        self._name_late()

    def _nameless(self, proc: procs.Proc) -> None:
        """Record a rank that ended before its title was read. A zombie's name is cut off before its number.

        SGLang 0.5.9 waits for ever for one that is not TP0. It is told at once, as ``scheduler``: those who follow the
        run wait a moment for the others' last words anyway, in which ``_name_late`` mostly finds which it was.
        """
        known = proc.pid in self._watched or proc.pid in self._recorded  # rank_pids has one pid a role
        if known or procs.role(procs.title(proc.ppid)):  # the latter: what a rank had forked
            return
        self._unnamed.add(proc.pid)
        self._watch(proc.pid, "scheduler")
        self._record(proc.pid, proc.status)

    def _name_late(self) -> None:
        """Which rank it was that ended unnamed is known once all the others have shown theirs."""
        ranks, pids, helpers = (self.state[name] for name in ("ranks", "rank_pids", "helpers"))
        missing = [rank for rank in self.expected if rank not in ranks]
        if len(self._unnamed) == len(missing) == 1:
            ranks[missing[0]], pids[missing[0]] = helpers.pop("scheduler"), pids.pop("scheduler")
            self.run.event("named", role=missing[0], pid=self._unnamed.pop())
            self.save()

    def _watch(self, pid: int, role: str) -> None:
        try:
            fd = os.pidfd_open(pid)
            self._selector.register(fd, selectors.EVENT_READ, pid)
        except OSError:  # gone already, or an old kernel: then the reaping tells, a little later
            fd = -1
        self._watched[pid] = (role, fd)
        if role == "server":
            return
        group = "ranks" if "TP" in role else "helpers"
        self.state[group].setdefault(role, None)
        self.state["rank_pids"][role] = pid
        self.run.event("seen", role=role, pid=pid)
        self.save()

    def _ended(self, pid: int) -> None:
        """A watched process ended. Somebody else's child is a zombie now: its status is in /proc until it is reaped."""
        proc = procs.look(pid)
        if proc and proc.ppid == os.getpid():
            return self._unwatch(pid)  # the reaping brings its status
        return self._record(pid, proc.status if proc and proc.zombie else None)

    def _record(self, pid: int, status: "int | None") -> None:
        self._unwatch(pid)
        self._recorded.add(pid)
        role, _ = self._watched.pop(pid)
        exit_ = {"code": None, "signal": "", "oom": False, "time": time.time()}
        if status is not None:
            exit_.update(procs.exit_of(status))
            exit_["oom"] = oom.verdict(exit_, pid, self.oom)
        if role == "server":
            if self.state["exit"] is None:
                self._server_ended(exit_)
        else:
            group = self.state["ranks" if "TP" in role else "helpers"]
            if group.get(role) is not None:
                return
            group[role] = exit_
        self.save()
        self.run.event("ended", role=role, pid=pid, **{k: v for k, v in exit_.items() if k != "time"})

    def _server_ended(self, exit_: "dict[str, Any]") -> None:
        """Its phase stays ``running`` while it is to be started again: nobody else may take its place."""
        self.state.update(exit=exit_, phase="stopped" if restart.stop_asked(self.run) else "exited")
        if self.state["phase"] == "stopped":
            return
        pause, why = restart.decide(self.spec.get("restart") or {}, self.state, exit_["time"])
        if pause is None:
            self.state["not_restarted"] = why
        else:
            self._failed = self._failed or exit_["time"]
            self.state.update(phase="running", restart_at=exit_["time"] + pause)
            self.run.event("restarting", attempt=self.state["attempt"] + 1, after_s=pause)

    def _unwatch(self, pid: int) -> None:
        role, fd = self._watched[pid]
        if fd >= 0:
            self._selector.unregister(fd)
            os.close(fd)
            self._watched[pid] = (role, -1)

    def save(self) -> None:
        """Write state.json, if the disk has room."""
        try:
            self.run.write("state.json", self.state)
        except OSError as error:  # a full disk must not end the watch over a live server
            with contextlib.suppress(OSError):  # so may be the log's
                print(f"state.json: {error}", file=sys.stderr, flush=True)  # noqa: T201 - supervisor.log
