"""Reads ``tests/cases/diagnose/*.yaml``: short descriptions become the evidence that the agent would have sent.

A case has ``title``, ``source``, ``expect`` (class, optional rank and confidence, or ``any`` of several classes) and:
``log`` (text) or ``log_file`` (in ``tests/cases/logs``), ``tp``; for a live case ``live`` with any of ``processes``,
``port``, ``silent`` (seconds), ``lines``, ``grew``, ``gpus``, ``kernel``, ``could_not``, ``dumps``; ``run``;
``baseline`` (lines and seconds of good runs at milestones).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hsops.core.baseline import Baseline, GoodRun, Step
from hsops.core.runs import Run, parse_run
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.reading import from_log, from_probe

CASES = Path(__file__).parent / "cases"
NOW = 1_000_000.0


def names() -> list[str]:
    """All cases, by file name."""
    return sorted(path.stem for path in (CASES / "diagnose").glob("*.yaml"))


def load(name: str) -> dict[str, Any]:
    """One case."""
    case: dict[str, Any] = yaml.safe_load((CASES / "diagnose" / f"{name}.yaml").read_text())
    return case


def evidence(case: dict[str, Any]) -> Evidence:
    """What there is to judge by in a case."""
    log = (CASES / "logs" / case["log_file"]).read_text() if "log_file" in case else case.get("log", "")
    if "live" not in case:
        return from_log("server.log", log.encode(), tp=case.get("tp"))
    return from_probe(
        _raw(case["live"], log),
        host="rtx8",
        run=_run(case["run"], case.get("tp", 1)) if "run" in case else None,
        tp=case.get("tp", 1),
        baseline=_baseline(case["baseline"]) if "baseline" in case else None,
    )


def raw(case: dict[str, Any]) -> dict[str, Any]:
    """What the agent would have sent for a live case."""
    return _raw(case["live"], case.get("log", ""))


def _raw(live: dict[str, Any], log: str) -> dict[str, Any]:
    found: dict[str, Any] = {"time": NOW, "took_s": 2.0, **live}
    found["processes"] = [
        _process(one, 1000 + i) for i, short in enumerate(live.get("processes", ())) for one in _many(short)
    ]
    if log:
        lines, grew = live.get("lines", log.count("\n")), live.get("grew", 0)
        found["log"] = {
            "path": "server.log",
            "head": log,
            "lines": lines,
            "changed": live.get("silent", 0),
            "size": len(log),
            "size_after": len(log) + grew,
        }
    if "port" in live:
        found["port"] = _port(live["port"])
    found["could_not"] = [{"probe": p, "why": w, "message": w} for p, w in live.get("could_not", {}).items()]
    return found


def _many(short: dict[str, Any]) -> list[dict[str, Any]]:
    """``ranks: 8`` stands for eight equal schedulers."""
    rest = {key: value for key, value in short.items() if key != "ranks"}
    if "ranks" not in short:
        return [rest]
    return [{**rest, "role": "scheduler", "rank": rank} for rank in range(short["ranks"])]


def _process(short: dict[str, Any], pid: int) -> dict[str, Any]:
    state = short.get("state", "S")
    found = {
        "pid": short.get("pid", pid + (short.get("rank") or 0)),
        "role": short["role"],
        "rank": short.get("rank"),
        "name": short.get("name", short["role"]),
        "state": state,
        "started": NOW - short.get("age", 600),
        "ended": short.get("ended", ""),
        "orphan": short.get("orphan", False),
        "files": {"0": "/dev/null", "1": "server.log", "2": "server.log"},
    }
    if state not in "ZX":
        found["sample"] = _sample(short, state)
    if "stack" in short:
        found["stacks"] = [
            {"threads": [_thread(short["stack"])]},
            {"threads": [_thread(short.get("then", short["stack"]))]},
        ]
    if "calls" in short:
        top = [[*short.get("call", ["write", "eventfd"]), short["calls"]]]
        found["strace"] = {
            "calls": short["calls"],
            "seconds": 1.0,
            "top": top,
            "eventfd_writes": short.get("eventfd", 0),
        }
    return found


def _sample(short: dict[str, Any], state: str) -> dict[str, Any]:
    cpu, running = short.get("cpu", 0.0), round(20 * short.get("running", 1.0 if short.get("cpu", 0) > 80 else 0.0))
    return {
        "state": state,
        "cpu": cpu,
        "read_bytes_s": short.get("read", 0),
        "rchar_s": short.get("rchar", 0),
        "majflt_s": short.get("faults", 0),
        "main": {
            "cpu": cpu,
            "user": cpu,
            "calls": {"running": running, "202": 20 - running},
            "wchan": short.get("wchan", "0" if running == 20 else "futex_do_wait"),
        },
    }


def _thread(frames: list[str]) -> dict[str, Any]:
    """Frames, innermost first, each ``name file line``."""
    rows = [frame.rsplit(" ", 2) for frame in frames]
    return {
        "name": "MainThread",
        "main": True,
        "active": True,
        "frames": [[name, file, int(line)] for name, file, line in rows],
    }


def _port(short: dict[str, Any]) -> dict[str, Any]:
    """``{open: 1000, health: 503}``: who listens, and what the port answers."""
    found: dict[str, Any] = {"number": short.get("number", 8000), "listener": None}
    if "open" in short:
        found["listener"] = {"pid": short["open"], "command": "python"}
    for key in ("health", "model_info"):
        if key in short:
            value = short[key]
            found[key] = {"status": value} if isinstance(value, int) else {"error": value}
    return found


def _run(short: dict[str, Any], tp: int) -> Run:
    whole: dict[str, Any] = {
        "id": "1129-174200-3f9c",
        "server": "kimi",
        "phase": "running",
        "pid": 1000,
        "started": NOW - 600,
        "port": 8000,
        "tp": tp,
        "argv": ["python"],
        "spec_hash": "1",
        "directory": "/runs/1",
        "log": "server.log",
        "dump_dir": "",
        "patches": {},
        "sglang": "0.5.9",
        "exit": None,
        "ranks": {},
        "helpers": {},
        "rank_pids": {},
        "left": [],
        "uptime_s": 600.0,
        **short,
    }
    return parse_run(whole)


def _baseline(short: dict[str, Any]) -> Baseline:
    """``{lines: [636, 641], seconds: 400, steps: {weights: [215, 390]}}``: two good runs."""
    steps = {name: Step(lines, seconds) for name, (lines, seconds) in short["steps"].items()}
    return Baseline(
        "kimi", tuple(GoodRun(f"r{n}", "1", "0.5.9", 0.0, steps, n, float(short["seconds"])) for n in short["lines"])
    )
