"""Rules about processes that are gone, dead or stopped."""

from __future__ import annotations

import re

from hsops.core.nodes import absent
from hsops.core.runs import Exit
from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.processes import Process
from hsops.diagnose.rules_log import exception, silent_rank
from hsops.diagnose.signatures import ECHO
from hsops.diagnose.verdict import Finding, Verdict

_DIED_AT_START = re.compile(r"Rank (\d+) scheduler (?:died|is dead)[^\n]*(?:exit code: (-?\d+))?", re.MULTILINE)
_NEEDED = {  # without whom nothing goes on: role -> what it is called when that one is stopped
    "scheduler": "rank-stopped",
    "data_parallel_controller": "rank-stopped",
    "detokenizer": "detokenizer-stalled",
    "launcher": "tokenizer-blocked",
    "tokenizer": "tokenizer-blocked",
}
_TERMINAL = re.compile(r"/dev/(pts/|tty)")
_STARTS_S = 60.0  # a launch that is under way may be about to start the next host's part
_TOGETHER_S = 0.05  # the launcher ends the other ranks when one died: who went first is the one, if that can be told


def nothing_runs(ev: Evidence) -> Verdict | None:
    """No process of the server, and nothing that went wrong."""
    if not ev.live or any(not p.dead for p in ev.processes):
        return None
    run = ev.run
    if run is None:
        why = "no run of this server is recorded and nothing listens for it"
    elif run.phase == "stopped":
        why = f"run {run.id} was stopped by hsops stop"
    elif run.exit and run.exit.code == 0 and not run.exit.signal:
        why = f"run {run.id} ended by itself with exit code 0"
    elif run.phase == "lost" and not run.exit:
        why = f"run {run.id} is lost: the host restarted, or the server and its supervisor were killed together"
    else:
        return None
    return Verdict("not-running", "high", why, cite.everything(ev), remedy="hsops launch --wait-healthy")


def stopped(ev: Evidence) -> Verdict | None:
    """A process is stopped by a signal, a frozen cgroup or a debugger: the others wait for it."""
    held = [p for p in ev.processes if p.stopped and p.role in _NEEDED]
    if not held:
        return None
    process = next((p for p in held if p.role == "scheduler"), held[0])
    name = _NEEDED[process.role]
    pids = " ".join(str(p.pid) for p in held)
    if process.role == "launcher" and process.state == "T" and _TERMINAL.match(process.files.get("0", "")):
        return _on_a_terminal(ev, process)
    by = "a debugger or tracer holds it" if process.state == "t" else "a signal (SIGSTOP) or a frozen cgroup"
    found = [Finding("processes", f"{p.label} (pid {p.pid}) is in state {p.state}: {by}") for p in held]
    return Verdict(
        name,
        "high",
        f"{' and '.join(p.label for p in held)} {'is' if len(held) == 1 else 'are'} stopped; the others wait",
        (*found, *cite.everything(ev)),
        rank=process.rank if process.role == "scheduler" else None,
        remedy=f"kill -CONT {pids}",
    )


def host_lost(ev: Evidence) -> Verdict | None:
    """A host of the server cannot be asked, and the server does not answer: nothing else that is seen says more."""
    if not ev.lost or ev.healthy or exception(ev):
        return None
    host = next(iter(ev.lost))
    parts = ev.run.parts if ev.run else ()
    ranks = next((part.ranks for part in parts if part.host == host), ())
    whose = f" with {', '.join(ranks)}" if ranks else ""
    rank = int(ranks[0].removeprefix("TP")) if len(ranks) == 1 else None
    return Verdict(
        "node-unreachable",
        "medium",
        f"{host}{whose} cannot be reached, and the server does not answer",
        cite.everything(ev),
        rank=rank,
        remedy="bring that host back, then hsops launch --replace --wait-healthy",
        next_probe=f"hsops --host {host} doctor",
        host=host,
    )


def never_started(ev: Evidence) -> Verdict | None:
    """A host was asked and has nothing of the run: its launch was cut off, and the others wait for those ranks."""
    run = ev.run
    hosts = absent(run) if run and (run.alive or run.left) else ()
    if not hosts or not run or ev.healthy or exception(ev):
        return None
    ranks = [rank for part in run.parts if part.host in hosts for rank in part.ranks]
    verb = "is" if len(ranks) == 1 else "are"
    return Verdict(
        "rank-never-joined",
        "high" if run.uptime_s > _STARTS_S else "medium",
        f"nothing of run {run.id} is on {', '.join(hosts)}: {', '.join(ranks)} {verb} not there, and the others wait",
        cite.everything(ev),
        rank=int(ranks[0].removeprefix("TP")) if len(ranks) == 1 else None,
        remedy="hsops launch --replace --wait-healthy",
        next_probe=f"hsops --host {hosts[0]} audit: did the launch get there?",
        host=hosts[0],
    )


def _on_a_terminal(ev: Evidence, launcher: Process) -> Verdict:
    """Its input is a terminal: in the background it is stopped when it, or sudo before it, reads from there."""
    return Verdict(
        "ssh-launch-holds-stdin",
        "medium",
        f"launch_server (pid {launcher.pid}) is stopped, and a terminal is its input: who reads from one in the "
        "background is stopped",
        cite.everything(ev),
        remedy="hsops launch, which starts it without one; by hand: setsid nohup ... < /dev/null &",
        alternatives=("tokenizer-blocked",),
    )


def rank_died(ev: Evidence) -> Verdict | None:
    """A rank ended and its own exception is not in the log: a signal, or the OOM killer."""
    if not ev.live or exception(ev) or (ev.healthy and not ev.missing) or _launcher_first(ev):
        return None
    rank, how = _first_death(ev)
    if rank is None and not how:
        return None
    oom = _oom(ev, rank, how)
    who = f"TP{rank}" if rank is not None else "a scheduler"
    name = "scheduler-killed-oom" if oom else "rank-killed"
    if not oom and how and not how.startswith("SIG"):
        name = "peer-rank-died"
    why = "the kernel's OOM killer ended it" if oom else f"{how or 'it is gone'}, and it left no exception in the log"
    return Verdict(
        name,
        "high" if oom == "recorded" or (rank is not None and how.startswith("SIG")) else "medium",
        f"{who} died: {why}",
        (*_oom_lines(ev, oom), *cite.everything(ev)),
        rank=rank,
        remedy="lower the host memory that loading takes, then hsops launch" if oom else "hsops launch --replace",
        next_probe="" if oom or how else "dmesg -T | grep -i -e oom -e killed",
    )


def detokenizer_died(ev: Evidence) -> Verdict | None:
    """The server was up, the schedulers live, the detokenizer does not.

    It is gone only when it was there. A small model is loaded, and HTTP up, before the detokenizer has done its imports
    and has its title; of several nodes the first one has it. Where /health still says 200 nothing goes through it
    (--skip-tokenizer-init); then its recorded end has to tell.
    """
    up = ev.log is not None and "http" in ev.log.summary.reached
    end = ev.run.helpers.get("detokenizer") if ev.run else None
    known = bool(end) or ev.was_seen("detokenizer")
    if not (ev.live and ev.alive and ev.ranks and up) or ev.detokenizer or (ev.healthy and not end):
        return None
    if not known and (ev.unnamed or ev.several_nodes):
        return None
    how = f": {end}" if end else ""
    lost = "only requests for token ids are answered" if ev.healthy else "no answer can leave the server"
    return Verdict(
        "detokenizer-died",
        "high" if known else "medium",
        f"the detokenizer is gone{how}; {lost}",
        cite.everything(ev),
        remedy="hsops launch --replace --wait-healthy",
    )


def launcher_gone(ev: Evidence) -> Verdict | None:
    """launch_server itself was killed; what it left behind, if anything."""
    if not ev.live or ev.alive or (ev.run is None and not ev.processes):
        return None
    left = [p for p in ev.processes if not p.dead and p.role in ("scheduler", "detokenizer", "child")]
    end = ev.run.exit if ev.run else None
    if end and end.oom:
        return _oom_launcher(ev, end)
    if not left and not (end and end.signal):
        return None
    echoes = {e.id for e in ev.log.summary.errors} if ev.log else set()
    if "child-failed" in echoes:
        return None  # it ended itself because a child had failed
    rest = f"; left behind: {', '.join(f'{p.label} ({p.pid})' for p in left)}" if left else ""
    return Verdict(
        "launcher-killed",
        "high" if end and end.signal else "medium",
        f"launch_server was killed{f' by {end.signal}' if end and end.signal else ''}{rest}",
        cite.everything(ev),
        remedy=f"kill {' '.join(str(p.pid) for p in left)}; hsops launch" if left else "hsops launch --wait-healthy",
        next_probe="who sent the signal: hsops' audit log, journalctl, the container's orchestrator",
    )


def _first_death(ev: Evidence) -> tuple[int | None, str]:
    """The rank that died first and how (``SIGKILL``, ``exit 1``); (None, "") when no rank died."""
    recorded, said = _recorded(ev), _said(ev)
    if recorded:
        rank, how = recorded
        return rank, how or (said[1] if said and said[0] == rank else "")
    if ev.dead:
        return (ev.missing[0] if len(ev.missing) == 1 else None), ev.dead[0].ended or "it ended"
    if said and not ev.alive:
        return said
    if ev.alive and ev.missing and ev.ranks:
        return (ev.missing[0] if len(ev.missing) == 1 else None), ""
    return None, ""


def _launcher_first(ev: Evidence) -> bool:
    """All were killed and nobody complained. Ranks are killed with their launcher, by the kernel (PR_SET_PDEATHSIG);

    when a rank goes first, another one or the launcher says so in the log. Times do not tell: on a busy machine the
    end of a process takes a second, and the launcher's, with the most threads, the longest.
    """
    run = ev.run
    ends = [*run.ranks.values(), run.exit] if run else []
    killed = len(ends) > 2 and all(end and end.signal == "SIGKILL" and not end.oom for end in ends)
    return killed and ev.log is not None and not ev.log.summary.errors and not ECHO.search(ev.log.text)


def _recorded(ev: Evidence) -> tuple[int, str] | None:
    """From the supervisor's record; None when it cannot tell who went first. How is empty as long as nobody knows."""
    ends = dict(ev.ends)
    if not ends or (ev.run and ev.run.phase == "stopped"):
        return None
    order = list(ends)
    first = order[0]
    tied = [r for r in order if ends[r].time - ends[first].time < _TOGETHER_S]
    if len(tied) > 1 or (ev.run and ev.run.exit and ends[first].time > ev.run.exit.time + _TOGETHER_S):
        quiet = silent_rank(ev)
        if quiet is None or quiet not in ends:
            return None
        first = quiet
    end = ends[first]
    return first, end.signal or ("" if end.code is None else f"exit {end.code}")


def _said(ev: Evidence) -> tuple[int, str] | None:
    """From the launcher's word about a rank that died while it started."""
    said = _DIED_AT_START.search(ev.log.text) if ev.log else None
    if said is None:
        return None
    code = re.search(r"exit code: (-?\d+)", said.group(0))
    return int(said.group(1)), _code(int(code.group(1))) if code else "it ended"


def _code(code: int) -> str:
    return {-9: "SIGKILL", -15: "SIGTERM", -11: "SIGSEGV", -6: "SIGABRT", -7: "SIGBUS"}.get(code, f"exit {code}")


def _oom(ev: Evidence, rank: int | None, how: str) -> str:
    """``recorded``: the kernel or the supervisor says so; ``likely``: it cannot be read; empty: it was not.

    The counter is the host's, since its boot: a supervisor, who has seen that it did not rise, knows better.
    """
    end = ev.run.ranks.get(f"TP{rank}") if ev.run and rank is not None else None
    if (end and end.oom) or ev.own_oom:
        return "recorded"
    if not end and how == "SIGKILL" and ev.blind("kernel") and (ev.oom_kills or 0) > 0:
        return "likely"
    return ""


def _oom_lines(ev: Evidence, oom: str) -> tuple[Finding, ...]:
    if oom == "likely":
        return (Finding("kernel", f"{ev.oom_kills} OOM kills since boot; the kernel log may not be read"),)
    if not oom and not ev.blind("kernel"):
        return (Finding("kernel", "its log tells of no OOM kill of this server"),)
    return ()


def _oom_launcher(ev: Evidence, end: Exit) -> Verdict:
    return Verdict(
        "scheduler-killed-oom",
        "high",
        f"launch_server was {end}",
        cite.everything(ev),
        remedy="lower the host memory that the server takes, or give the host more",
    )
