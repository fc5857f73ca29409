"""The verb ``probe``: evidence about one run, gathered in order of intrusiveness, each look with its own deadline.

/proc first, then the port, then stacks read from outside, last strace, and that only on ranks of a server that does
not answer. A look that is not possible says why (``could_not``); nothing here fails because a tool is missing.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from hsops.agent import (
    probe_census,
    probe_faults,
    probe_files,
    probe_gpus,
    probe_host,
    probe_http,
    probe_sample,
    probe_stacks,
    probe_strace,
    probe_tools,
    procs,
)
from hsops.agent.probe_tools import CouldNot, is_root
from hsops.agent.rundir import read_json

SAMPLE_S = 1.0
BETWEEN_STACKS_S = 0.4
STACKS_SHARE = 0.3  # of the budget, for one dump: it takes 20 ms, and seconds where spinning ranks leave it no core
HEALTH_S = 2.8  # a healthy server answers /health within about a second: it generates one token
STRACE_S = 0.8
ATTACH_S = 3.0  # at least; 10 ms on a quiet machine
ENDING_S = 0.3  # kept back for the last looks
NATIVE, NATIVE_S = 3, 2.0  # at most so many ranks, and seconds; it takes 0.2 to 0.7 s where a core is free
_Stacks = Callable[["list[int]", float], "dict[int, dict[str, Any]]"]
_RAS = "localhost:28028"  # where NCCL's RAS is by default
_WATCHED = ("launcher", "scheduler", "detokenizer", "tokenizer")


def probe(params: "dict[str, Any]") -> "dict[str, Any]":
    """Evidence about a run.

    Params, all optional: ``run`` (its id), ``pid`` of launch_server, ``port``, ``log``, ``dumps`` (a folder),
    ``server`` (its name), ``since`` (its start: older OOM kills are others'), ``budget_s``: no look begins after it.
    Without ``pid`` it is looked for by ``port``.
    """
    with probe_tools.first_in_line():
        return Probe(params).gather()


class Probe:
    """One gathering of evidence."""

    def __init__(self, params: "dict[str, Any]") -> None:
        self.params = params
        self.started = time.monotonic()
        self.budget = float(params.get("budget_s") or 5.0)
        self.could_not: list[dict[str, str]] = []
        self.processes: list[dict[str, Any]] = []
        self.spy: str | None = None
        self.spent: dict[str, float] = {}
        self.cpu = sum(os.times()[:4])

    def gather(self) -> "dict[str, Any]":
        """Every look, in order."""
        port = self.params.get("port")
        self.processes = self._census(port)
        held = set(self._held(set()))
        log = self._look("log", self._log) or {}
        with ThreadPoolExecutor(3) as pool:
            http = pool.submit(self._http, port) if port else None
            gpus = pool.submit(lambda: self._look("gpus", self.gpus))
            ras = pool.submit(self._ras)
            self._timed("sample", self._sample)
            self._timed("stacks", self._stacks)
            self._timed("strace", lambda: self._syscalls(http))
            if not self._answers(http):
                self._timed("native", self._native)
            found = {
                "port": self._wait("http", http),
                **(self._wait("gpus", gpus) or {"gpus": [], "gpu_apps": []}),
                "ras": self._wait("ras", ras),
            }
        if log:
            log["size_after"] = probe_files.size(log["path"])
        return {
            "time": time.time(),
            "root": is_root(),
            "processes": self.processes,
            "log": log or None,
            "baseline": self._baseline(),
            "visible": self._variable("CUDA_VISIBLE_DEVICES"),
            **found,
            **self._machine(),
            "could_not": self.could_not,
            "arch": os.uname().machine,
            "spent": self.spent,
            "cpu_s": round(sum(os.times()[:4]) - self.cpu, 2),
            "held": self._held(held),
            "took_s": round(time.monotonic() - self.started, 2),
        }

    def _census(self, port: "int | None") -> "list[dict[str, Any]]":
        found = probe_census.find(
            pid=self.params.get("pid"), run=self.params.get("run"), port=port, log=self.params.get("log")
        )
        for process in found:
            process["argv"] = [word[:200] for word in process["argv"][:60]]
            process["files"] = probe_files.targets(process["pid"])
            process["preload"] = procs.environment(process["pid"]).get("LD_PRELOAD", "")[:300]
        return found

    def _log(self) -> "dict[str, Any]":
        path = self.params.get("log") or self._output_of_launcher()
        if not path:
            raise CouldNot("not-found", "no log is known and no process of the run writes to a file")
        try:
            return probe_files.log_state(path)
        except FileNotFoundError as error:
            raise CouldNot("not-found", f"there is no {path}") from error

    def _output_of_launcher(self) -> "str | None":
        """Where a server that hsops did not start writes to, when that is a file."""
        files = [p["files"]["1"] for p in self.processes if p["role"] in _WATCHED]
        return next((path for path in files if os.path.isfile(path)), None)

    def _baseline(self) -> "dict[str, Any] | None":
        """What good runs of this server looked like, as an earlier launch recorded it."""
        path = os.path.join(self.params.get("state_dir", ""), "baselines", f"{self.params.get('server')}.json")
        try:
            with open(os.path.expanduser(path), encoding="utf-8") as file:
                return json.load(file)  # type: ignore[no-any-return]
        except (OSError, ValueError):
            return None

    def _ras(self) -> "str | None":
        """NCCL's own view, where there are ranks that could wait for each other."""
        several = len(self._watched("scheduler")) > 1
        address, pids = self._variable("NCCL_RAS_ADDR") or _RAS, [p["pid"] for p in self.processes]
        return self._look("ras", lambda: probe_gpus.ras(address, pids, self._left(2.0))) if several else None

    def gpus(self) -> "dict[str, Any]":
        """As ``probe_gpus.gpus``; where this server is gone also which holders of memory have no launcher."""
        found = probe_gpus.gpus(self._left(3.0))
        if found["gpu_apps"] and not self._watched("launcher"):
            from hsops.agent import orphans  # with what it takes to end them: seldom needed

            alone = orphans.ranks(self.params)
            for app in found["gpu_apps"]:
                app["orphan"] = app["pid"] in alone
        return found

    def _http(self, port: int) -> "dict[str, Any]":
        found: dict[str, Any] = {"number": port, "listener": procs.listener(port)}
        if found["listener"]:
            found["model_info"] = self._model_info(port)
            before = procs.clients(port)
            found["health"] = probe_http.ask(port, "/health", self._left(HEALTH_S))
            found["clients"] = len(before & procs.clients(port))
        else:
            found["health"] = probe_http.ask(port, "/health", 0.5)
        return found

    def _model_info(self, port: int) -> "dict[str, Any]":
        """Static: it answers while the HTTP process is alive, whatever the schedulers do. Older servers: get_..."""
        answer = probe_http.ask(port, "/model_info", 1.0)
        return probe_http.ask(port, "/get_model_info", 1.0) if answer.get("status") == 404 else answer

    def _sample(self) -> None:
        pids = [p["pid"] for p in self._watched()]
        found = self._look("sample", lambda: probe_sample.sample(pids, SAMPLE_S)) or {}
        for process in self.processes:
            process["sample"] = found.get(process["pid"])

    def _stacks(self) -> None:
        ranks = [*self._watched("scheduler", "child"), *self._watched("launcher", "detokenizer", "tokenizer")]
        lacks = self._spied(ranks) if ranks else None
        if lacks:  # then the ranks are asked to write them down, if hsops has started them
            told = bool(self.params.get("run")) and self._dump(self._ask, ranks)
            self._could_not("py-spy" if told else "stacks", lacks)

    def _spied(self, ranks: "list[dict[str, Any]]") -> "CouldNot | None":
        """Stacks read by py-spy, or why it may not."""
        launcher = next((p["argv"] for p in self.processes if p["role"] == "launcher"), [sys.executable])
        try:
            self.spy = probe_stacks.find(launcher)
        except CouldNot as reason:
            return reason
        if self._dump(functools.partial(probe_stacks.dump, self.spy), ranks):
            self._report("stacks", [s for p in ranks for s in p.get("stacks", ())])
            return None
        first = ranks[0]["stacks"][0]
        return CouldNot(first["why"], first["message"])

    def _ask(self, pids: "list[int]", _longest: float) -> "dict[int, dict[str, Any]]":
        return probe_faults.dump(self._run_folder(), pids)

    def _run_folder(self) -> str:
        return os.path.join(os.path.expanduser(self.params.get("state_dir", "")), "runs", str(self.params["run"]))

    def _variable(self, name: str) -> "str | None":
        """A variable of the server, "" where it is not set; None where nobody tells."""
        for launcher in self._watched("launcher"):
            env = procs.environment(launcher["pid"])
            return env.get(name, "") if env else None
        if not self.params.get("run"):
            return None
        return (read_json(os.path.join(self._run_folder(), "spec.json")).get("env") or {}).get(name)

    def _dump(self, look: _Stacks, ranks: "list[dict[str, Any]]") -> bool:
        """Two looks at the stacks of ``ranks``; False where none may be had this way."""
        for process in ranks:
            process["stacks"] = []
        for step in range(2):
            if step:
                time.sleep(BETWEEN_STACKS_S)
            longest = self._left(self.budget * STACKS_SHARE)
            if longest <= 0:
                self._could_not("stacks", CouldNot("timed-out", "no time was left for another look at the stacks"))
                return True
            found = look([p["pid"] for p in ranks], longest)
            for process in ranks:
                process["stacks"].append(found[process["pid"]])
            if all(one.get("why") in ("not-permitted", "not-found") for one in found.values()):
                return False
        self._once_more(look, ranks)
        return True

    def _once_more(self, look: _Stacks, ranks: "list[dict[str, Any]]") -> None:
        """At those whose stacks moved under a look, unless it would take the time of what comes after."""
        missed = {p["pid"]: p["stacks"] for p in ranks if any(s.get("why") == "failed" for s in p["stacks"])}
        if missed and (longest := self._left(self.budget) - 2 * STRACE_S) > BETWEEN_STACKS_S:
            time.sleep(BETWEEN_STACKS_S)
            for pid, found in look(list(missed), longest - BETWEEN_STACKS_S).items():
                missed[pid].remove(next(s for s in missed[pid] if s.get("why") == "failed"))
                missed[pid].append(found)

    def _native(self) -> None:
        """What C++, CUDA and NCCL code does below Python: of one rank of each kind, since it stops it for a moment."""
        kinds: dict[Any, dict[str, Any]] = {}
        for process in self._watched("scheduler"):
            threads = next((s["threads"] for s in process.get("stacks", ()) if s.get("threads")), None)
            if threads and process["state"] not in "Tt":
                frames = threads[0]["frames"]  # none of a thread that has just begun
                kinds.setdefault(frames[0][0] if frames else "", process)
        some, longest = list(kinds.values())[:NATIVE], self._left(NATIVE_S + ENDING_S) - ENDING_S
        if self.spy and some and longest > NATIVE_S / 4:
            found = probe_stacks.dump(self.spy, [p["pid"] for p in some], longest, native=True)
            for process in some:
                process["native"] = found[process["pid"]]
            self._report("native", list(found.values()))

    def _syscalls(self, http: "Future[dict[str, Any]] | None") -> None:
        ranks = [p for p in self._watched("scheduler") if p["state"] not in ("T", "t")]
        if not ranks:
            return
        if self._answers(http):
            self._could_not("strace", CouldNot("not-needed", "the server answers; strace would slow it"))
            return
        tool = self._look("strace", probe_strace.find)
        if tool is None:
            return
        if self._left(STRACE_S) < STRACE_S:
            self._could_not("strace", CouldNot("timed-out", "no time was left for it"))
            return
        pids, patience = [p["pid"] for p in ranks], max(ATTACH_S, self._left(self.budget) / 2)
        found = self._look("strace", lambda: probe_strace.trace(tool, pids, STRACE_S, patience)) or {}
        for process in ranks:
            process["strace"] = found.get(process["pid"])
        self._report("strace", list(found.values()))

    def _answers(self, http: "Future[dict[str, Any]] | None") -> bool:
        return bool(http and http.done() and (http.result().get("health") or {}).get("status") == 200)

    def _machine(self) -> "dict[str, Any]":
        dumps = self.params.get("dumps")
        since = self.params.get("since") or min((p["started"] for p in self.processes), default=0.0)
        return {
            "memory": self._look("memory", probe_host.memory),
            "kernel": self._look("kernel", lambda: probe_host.kernel_log(since=since)),
            "dumps": self._look("dumps", lambda: probe_host.folder(dumps)) if dumps else None,
        }

    def _watched(self, *roles: str) -> "list[dict[str, Any]]":
        return [p for p in self.processes if p["role"] in (roles or (*_WATCHED, "child")) and p["state"] not in "ZX"]

    def _left(self, wanted: float) -> float:
        return min(wanted, self.started + self.budget - time.monotonic())

    def _wait(self, name: str, future: "Future[Any] | None") -> Any:
        try:
            return future.result(max(0.1, self._left(HEALTH_S + 1))) if future else None
        except FutureTimeoutError:  # the built-in one only from Python 3.11
            self._could_not(name, CouldNot("timed-out", "not done within the budget"))
            return None

    def _look(self, name: str, look: "Callable[[], Any]") -> Any:
        """What ``look`` returns, or None and a reason."""
        try:
            return look()
        except CouldNot as reason:
            self._could_not(name, reason)
        except PermissionError as error:
            self._could_not(name, CouldNot("not-permitted", f"{error.filename or error}: {error.strerror}"))
        except (OSError, ValueError) as error:
            self._could_not(name, CouldNot("failed", f"{type(error).__name__}: {error}"))
        return None

    def _timed(self, name: str, look: "Callable[[], None]") -> None:
        began = time.monotonic()
        look()
        self.spent[name] = round(time.monotonic() - began, 2)

    def _held(self, before: "set[str]") -> "list[str]":
        """Threads of the run that are traced or stopped now and were not ``before``."""
        return sorted(set(probe_tools.held([p["pid"] for p in self.processes])) - before)

    def _report(self, name: str, found: "list[dict[str, Any]]") -> None:
        """One reason a tool, not one a process: the one that more time would take away, if it is among them."""
        reason = min((f for f in found if f.get("why")), key=lambda f: f["why"] != "timed-out", default=None)
        if reason:
            self._could_not(name, CouldNot(reason["why"], reason["message"]))

    def _could_not(self, name: str, reason: CouldNot) -> None:
        self.could_not.append({"probe": name, "why": reason.why, "message": reason.message})
