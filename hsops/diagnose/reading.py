"""From what the agent sent, or from a log file, to ``Evidence``. Missing parts are left out, never guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hsops.core.baseline import Baseline, parse_baseline
from hsops.core.launched import launched
from hsops.core.runs import Run
from hsops.diagnose import ras
from hsops.diagnose.evidence import Answer, Blind, Evidence, Log, Port
from hsops.diagnose.gpus import Gpu, GpuApp
from hsops.diagnose.log_text import read_log
from hsops.diagnose.nodes import merged
from hsops.diagnose.processes import Activity, Process, Trace
from hsops.diagnose.stacks import Frame, Stack
from hsops.diagnose.waits import call

Raw = Mapping[str, Any]


def from_probe(
    raw: Raw,
    *,
    host: str = "",
    run: Run | None = None,
    tp: int | None = None,
    baseline: Baseline | None = None,
    unmoved_s: float = 0.0,
) -> Evidence:
    """The evidence of one ``probe``.

    Args:
        raw: the verb's result.
        tp: ranks to expect when neither the run nor the log tells.
        baseline: good runs of the same server; None takes those that ``raw`` brings along.
        unmoved_s: what a watch over the launch saw, as in ``Evidence``.
    """
    log = _log(raw, run.tp if run else tp)
    good = baseline or _baseline(raw)
    memory, dumps, kernel = raw.get("memory") or {}, raw.get("dumps") or {}, raw.get("kernel") or {}
    return Evidence(
        live=True,
        host=host,
        run=run,
        tp=run.tp if run else log.summary.tp if log else tp or 1,
        processes=tuple(_process(p, raw.get("time", 0.0), raw.get("arch", "")) for p in raw.get("processes", ())),
        log=log,
        port=_port(raw["port"]) if raw.get("port") else None,
        gpus=tuple(_gpu(g) for g in raw.get("gpus") or ()),
        gpu_apps=_apps(raw),
        visible=raw.get("visible"),
        ras=ras.parse(raw.get("ras") or "", _ranks(raw, run, log)),
        oom=tuple(kernel.get("oom", ())),
        xid=tuple(kernel.get("xid", ())),
        oom_kills=memory.get("oom_kills"),
        dumps=dumps.get("path", ""),
        free=dumps.get("free"),
        writable=dumps.get("writable"),
        could_not=tuple(Blind(b["probe"], b["why"], b["message"]) for b in raw.get("could_not", ())),
        baseline=good.of(run.spec_hash, launched(run).key) if good and run else good,
        unmoved_s=unmoved_s,
        **_effort(raw),
    )


def from_nodes(
    seen: Mapping[str, tuple[Raw, Run | None]], lost: Mapping[str, str], *, tp: int | None, unmoved_s: float = 0.0
) -> Evidence:
    """The evidence of one ``probe`` on each host of a server over several.

    Args:
        seen: host, by node rank -> what it showed, and its part of the run.
        lost: host -> why it could not be asked.
        tp, unmoved_s: as of ``from_probe``.
    """
    parts = [from_probe(raw, host=host, run=run, tp=tp, unmoved_s=unmoved_s) for host, (raw, run) in seen.items()]
    return merged(parts, {host: run for host, (_, run) in seen.items()}, lost)


def from_log(
    path: str, data: bytes, *, tp: int | None = None, lines: int | None = None, baseline: Baseline | None = None
) -> Evidence:
    """The evidence of a log alone. ``lines``: of all of it, where ``data`` is less."""
    log = read_log(path, data, tp=tp, lines=lines)
    return Evidence(live=False, tp=log.summary.tp, log=log, baseline=baseline)


def _ranks(raw: Raw, run: Run | None, log: Log | None) -> dict[int, int]:
    """pid -> rank of the schedulers; empty of a server on several hosts, where one pid may be there twice."""
    if (run and run.node) or (log and log.summary.args.get("nnodes", "1") != "1"):
        return {}
    return {p["pid"]: p["rank"] for p in raw.get("processes", ()) if p.get("rank") is not None}


def _baseline(raw: Raw) -> Baseline | None:
    try:
        return parse_baseline(raw["baseline"]) if raw.get("baseline") else None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None  # another version's file: worth less than a verdict


def _log(raw: Raw, tp: int | None) -> Log | None:
    found = raw.get("log")
    if not found:
        return None
    head, tail = found.get("head", "").encode(), found.get("tail", "").encode()
    grew = max(0, found.get("size_after", 0) - found["size"]) if "size" in found else 0
    return read_log(
        found.get("path", ""),
        head + tail,
        tp=tp,
        lines=found.get("lines"),
        now=raw.get("time"),
        started=next((p.get("started") for p in raw.get("processes", ()) if p["role"] == "launcher"), None),
        changed=found.get("changed"),
        grew=grew,
    )


def _process(raw: Raw, now: float, machine: str) -> Process:
    sample = raw.get("sample")
    dumps = (d["threads"] for d in raw.get("stacks") or () if "threads" in d)
    trace, native = raw.get("strace") or {}, (raw.get("native") or {}).get("threads")
    return Process(
        pid=raw["pid"],
        name=raw.get("name", ""),
        argv=tuple(raw.get("argv", ())),
        role=raw["role"],
        rank=raw.get("rank"),
        state=sample["state"] if sample else raw["state"],
        age=max(0.0, now - raw.get("started", now)),
        files=dict(raw.get("files", {})),
        orphan=raw.get("orphan", False),
        ended=raw.get("ended", ""),
        preload=raw.get("preload", ""),
        activity=_activity(sample, machine) if sample else None,
        stacks=tuple(tuple(_stack(t) for t in threads) for threads in dumps),
        trace=_trace(trace) if "calls" in trace else None,
        native=_stack(native[0]).frames if native else (),
    )


def _activity(raw: Raw, machine: str) -> Activity:
    main = raw.get("main", {})
    number, target = main.get("at", ("", ""))
    return Activity(
        cpu=raw["cpu"],
        main_cpu=main.get("cpu", 0.0),
        main_user=main.get("user", 0.0),
        looks=main.get("calls", {}),
        wchan=main.get("wchan", "?"),
        switches=main.get("voluntary", 0.0),
        read=raw.get("read_bytes_s"),
        rchar=raw.get("rchar_s"),
        faults=raw.get("majflt_s", 0),
        touched=raw.get("minflt_s", 0),
        call=call(number, machine),
        target=target if call(number, machine) not in ("", "futex") else "",
        others=tuple((t["name"], t["cpu"], t["state"]) for t in raw.get("busy_threads", ())),
    )


def _stack(raw: Raw) -> Stack:
    frames: Sequence[Sequence[Any]] = raw["frames"]
    return Stack(raw["name"], raw.get("main", False), raw["active"], tuple(Frame(n, f, line) for n, f, line in frames))


def _trace(raw: Raw) -> Trace:
    top = tuple((call, target, count) for call, target, count in raw.get("top", ()))
    return Trace(raw["calls"], raw["seconds"], top, raw.get("eventfd_writes", 0), raw.get("detached", True))


def _port(raw: Raw) -> Port:
    listener = raw.get("listener")
    holder = listener["pid"] if listener else None
    asked = (_answer(raw, "health"), _answer(raw, "model_info"))
    return Port(raw["number"], listener is not None, holder, *asked, clients=raw.get("clients", 0))


def _answer(raw: Raw, name: str) -> Answer | None:
    found = raw.get(name)
    return Answer(found.get("status"), found.get("error", ""), found.get("took_s", 0.0)) if found else None


def _effort(raw: Raw) -> dict[str, Any]:
    """What looking took, and what it left behind."""
    spent, held = dict(raw.get("spent", {})), tuple(raw.get("held", ()))
    return {"took_s": raw.get("took_s", 0.0), "spent": spent, "cpu_s": raw.get("cpu_s"), "held": held}


def _apps(raw: Raw) -> tuple[GpuApp, ...]:
    apps = raw.get("gpu_apps") or ()
    return tuple(
        GpuApp(a["pid"], a.get("memory"), a.get("name", ""), a.get("gpu"), a.get("orphan", False)) for a in apps
    )


def _gpu(raw: Raw) -> Gpu:
    return Gpu(
        index=int(raw.get("index", 0)),
        util=raw.get("util"),
        memory=raw.get("memory"),
        power=raw.get("power"),
        power_limit=raw.get("power_limit"),
        name=raw.get("name", ""),
        compute_cap=raw.get("compute_cap"),
        clock=raw.get("clock"),
        driver=raw.get("driver", ""),
        memory_total=raw.get("memory_total"),
        bus=raw.get("bus", ""),
    )
