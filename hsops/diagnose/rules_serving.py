"""Rules about a server whose port answers, or answered once."""

from __future__ import annotations

import re

from hsops.core.units import clock
from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.stacks import apart as parted
from hsops.diagnose.stacks import collectives, own_frames, waits_for_peers
from hsops.diagnose.stages import FLOOR_S, UNKNOWN_FLOOR_S
from hsops.diagnose.verdict import Finding, Verdict

_BATCH = re.compile(r"(Prefill|Decode) batch[.,] .*")
_READY = "The server is fired up"
_REQUESTS = re.compile(r"#(?:running-req|queue-req): (\d+)")
# lines of launches that ended well: none of them is evidence of a hang
_SCARES = re.compile(
    r"503 Service Unavailable|No available shared memory broadcast block|Custom allreduce is disabled"
    r"|avail mem=0\.\d+|Health check failed"
)
_ALIKE = ("collective-deadlock", "scheduler-deadlock", "decode-step-hang")
_NO_GOODBYE = re.compile(r"resource_tracker: There appear to be ")
_FRESH_S = 5.0
_COMPUTES = ("forward", "result", "jit")  # what a rank is doing with a batch
_ABOVE_ONE_CORE = 120.0
_FULL = 64 << 20


def port_taken(ev: Evidence) -> Verdict | None:
    """Somebody else listens on the server's port while the server lives or has failed to bind it."""
    holder = ev.strange_listener
    if holder is None or not ev.port or not ev.alive:
        return None
    return Verdict(
        "port-in-use",
        "high",
        f"port {ev.port.number} belongs to pid {holder}, not to this server, which can never open it",
        cite.everything(ev),
        remedy=f"stop pid {holder}, or set another servers.<name>.port (auto picks a free one)",
    )


def dump_folder(ev: Evidence) -> Verdict | None:
    """The server answers, but its ranks cannot write what they capture."""
    if not ev.healthy or not (ev.run and ev.run.dump_dir) or ev.free is None:
        return None
    if ev.writable is False:
        name, what, remedy = "dump-dir-unwritable", "is not writable", "give the server's user the folder"
    elif ev.free < _FULL:
        name, what, remedy = (
            "dump-dir-full",
            f"has {ev.free / 2**20:,.0f} MiB left",
            "hsops fetch --evict: removes there what is safe here",
        )
    else:
        return None
    return Verdict(
        name,
        "high",
        f"the server is healthy, but {ev.dumps} {what}: every sample will fail",
        cite.everything(ev),
        remedy=remedy,
    )


def healthy(ev: Evidence) -> Verdict | None:
    """/health said 200: the server generated a token for it."""
    if not ev.healthy:
        return None
    requests = _requests(ev)
    if requests:
        return Verdict(
            "healthy-loaded", "high", f"/health answers 200; {requests} requests are in work", cite.brief(ev)
        )
    notes: tuple[Finding, ...] = ()
    if any(p.activity and p.activity.cpu > 40 for p in ev.ranks.values()):
        notes = (Finding("note", "busy schedulers are normal: an idle one asks for work all the time"),)
    return Verdict("healthy", "high", "/health answers 200; it waits for requests", (*cite.brief(ev), *notes))


def said_ready(ev: Evidence) -> Verdict | None:
    """A log alone that ends well, whatever stood in it on the way."""
    if ev.live or not ev.log or not (ev.ready or _ready_elsewhere(ev.log.text)):
        return None
    if _NO_GOODBYE.search(ev.log.text[ev.log.text.rfind(_READY) :]) and "Gracefully exiting" not in ev.log.text:
        return Verdict(
            "launcher-killed",
            "medium",
            "it was ready, and then its main process ended without a word: what it shared was left behind",
            cite.everything(ev),
            remedy="hsops launch --wait-healthy",
            next_probe="who sent the signal: hsops' audit log, journalctl, dmesg -T | grep -i oom",
            alternatives=("rank-killed",),
        )
    scares = sorted({hit.group(0).strip(" ()") for hit in _SCARES.finditer(ev.log.text)})
    if scares:
        return Verdict(
            "healthy-slow-start",
            "medium",
            f"the start ended well; what looked like trouble on the way was none: {', '.join(scares[:3])}",
            cite.brief(ev),
            next_probe="hsops diagnose on the host: a log cannot tell whether it still answers",
            alternatives=("healthy",),
        )
    return Verdict(
        "healthy",
        "medium",
        "the log says that the server was ready, and nothing bad after that",
        cite.brief(ev),
        next_probe="hsops diagnose on the host: a log cannot tell whether it still answers",
        alternatives=("healthy-slow-start",),
    )


def _ready_elsewhere(text: str) -> bool:
    """vLLM's last line of a start; SGLang says the same long before it is ready."""
    return text.rstrip().endswith("Application startup complete.") and "EngineCore" in text


def idle_poll(ev: Evidence) -> Verdict | None:
    """/health could not be asked, and the ranks poll for work as healthy ones do."""
    unasked = ev.health is None and ev.live
    if not unasked or not ev.ready or not ev.ranks:
        return None
    if not all(p.polls or p.doing in ("idle", "loop") for p in ev.ranks.values()):
        return None
    return Verdict(
        "healthy-idle-busy-poll",
        "medium",
        "the ranks ask for work all the time and find none: that takes a core each and is by design",
        cite.everything(ev),
        remedy="args.sleep-on-idle: true saves the power",
        next_probe="curl /health on the host",
    )


def under_load(ev: Evidence) -> Verdict | None:
    """/health says no, but batches go on: its 20 s are too short for long prompts."""
    if not (ev.live and ev.alive and ev.ready) or ev.healthy or not ev.log:
        return None
    last = ev.log.news[-1] if ev.log.news else ""
    if not (_BATCH.search(last) and ev.silent_s < _FRESH_S):
        return _long_batch(ev)
    return Verdict(
        "health-false-negative-under-load",
        "medium",
        "/health says no while batches go on: the server is slow under load, not stuck; restarting makes it worse",
        cite.everything(ev),
        remedy="raise SGLANG_HEALTH_CHECK_TIMEOUT, or send less at once",
    )


def _long_batch(ev: Evidence) -> Verdict | None:
    """Ranks compute, and the last sign of work is young: no hang yet, however alike two looks a second apart are."""
    doing = {p.doing for p in ev.ranks.values()}
    allowed = UNKNOWN_FLOOR_S if "jit" in doing else FLOOR_S  # a kernel that no request has needed before takes longer
    if ev.health is None or ev.silent_s >= allowed or doing.isdisjoint(_COMPUTES):
        return None
    return Verdict(
        "health-false-negative-under-load",
        "low",
        f"/health does not answer while a batch is computed, {clock(ev.silent_s)} after the last sign of work: "
        "a long prompt, or a kernel that is compiled, takes so long",
        cite.everything(ev),
        remedy="wait",
        next_probe=f"hsops diagnose in {allowed:.0f} s: is there a new line by then?",
        alternatives=("scheduler-deadlock", "collective-deadlock", "first-request-hang"),
    )


def hung_serving(ev: Evidence) -> Verdict | None:
    """It was ready once, lives, and does not answer: by where the ranks stand."""
    if not (ev.live and ev.alive and ev.ready and ev.ranks) or ev.healthy or ev.health is None:
        return None
    what = {rank: p.doing for rank, p in ev.ranks.items()}
    rank = next((r for r, doing in what.items() if doing == "send"), None)
    if rank is not None:
        return _stuck(
            ev, "zmq-send-blocked", "high", f"TP{rank} is blocked in a send to a peer that does not read", rank
        )
    if not any(doing in _COMPUTES for doing in what.values()):
        return _loop_hang(ev) or _first_request(ev)
    apart = [r for r, p in ev.ranks.items() if p.stack and not waits_for_peers(p.stack)]
    if len(ev.ranks) > 1 and len(apart) == 1:
        return _stuck(
            ev,
            "collective-deadlock",
            "high",
            f"all ranks wait in a collective for TP{apart[0]}, which is elsewhere",
            apart[0],
        )
    if len(ev.ranks) > 1 and not apart:
        each_other = "all ranks wait for each other in a collective"
        return collective_mismatch(ev) or _stuck(ev, "collective-deadlock", "medium", each_other)
    name = "decode-step-hang" if _last_batch(ev).startswith("Decode") else "scheduler-deadlock"
    if not _BATCH.search(ev.log.text[ev.log.text.rfind(_READY) :] if ev.log else ""):
        name = "first-request-hang"
    return _stuck(ev, name, "medium", "the ranks do not come back from a batch")


def collective_mismatch(ev: Evidence) -> Verdict | None:
    """All ranks wait for their peers, and not in the same function."""
    waiting = collectives({r: p.stack for r, p in ev.ranks.items() if p.stack})
    if not parted(waiting) or not all(p.still for p in ev.ranks.values()):
        return None
    where = "; ".join(f"TP{rank} in {frame}" for rank, frame in list(waiting.items())[:4])
    return _stuck(
        ev,
        "collective-mismatch",
        "medium",
        f"every rank waits in a collective, and not in the same: {where}; none of them can be completed",
    )


def tokenizer_blocked(ev: Evidence) -> Verdict | None:
    """The HTTP process does not even answer what it knows by itself: a call holds up its event loop."""
    port, launcher = ev.port, ev.launcher
    if not (ev.live and launcher and ev.ready and port and port.open and port.model_info) or ev.healthy:
        return None
    if port.model_info.status or port.model_info.error != "timeout" or launcher.still is False:
        return None
    frames = own_frames(launcher.stack) if launcher.stack else ()
    where = f" in {frames[0]}" if frames else ""
    return Verdict(
        "tokenizer-blocked",
        "high" if launcher.still else "medium",
        f"launch_server stands still{where}: its event loop takes no request and gives no answer",
        cite.everything(ev),
        remedy="hsops launch --replace --wait-healthy",
        next_probe="" if launcher.still else "hsops diagnose again in half a minute",
    )


def _loop_hang(ev: Evidence) -> Verdict | None:
    """No batch is in work, and still it does not answer: one rank stands in its loop, the others wait for it."""
    still = all(p.still and not p.polls for p in ev.ranks.values())
    apart = [r for r, p in ev.ranks.items() if p.stack and not waits_for_peers(p.stack)]
    if not still or len(apart) != 1 or ev.silent_s < _FRESH_S:
        return None
    return _stuck(
        ev,
        "engine-loop-hang",
        "high" if len(ev.ranks) > 1 else "medium",
        f"TP{apart[0]} stands still in its scheduler's loop{', the others wait for it' if len(ev.ranks) > 1 else ''}",
        apart[0],
    )


def _first_request(ev: Evidence) -> Verdict | None:
    """Without stacks, by CPU alone: an idle scheduler takes one core, in its main thread; whoever takes more computes.

    No batch has been told since the server was ready, so it is the first request that they do not come back from.
    """
    cores = [p.activity.cpu for p in ev.ranks.values() if p.activity and not p.stack]
    if len(cores) < len(ev.ranks) or min(cores) < _ABOVE_ONE_CORE or ev.silent_s < UNKNOWN_FLOOR_S or ev.compilers:
        return None
    if not ev.log or _BATCH.search(ev.log.text[ev.log.text.rfind(_READY) :]):
        return None
    return Verdict(
        "first-request-hang",
        "low",
        f"no batch since it was ready, silent for {clock(ev.silent_s)}; every rank takes {min(cores):.0f} % CPU "
        "or more, where an idle one takes 100 %",
        cite.everything(ev),
        next_probe="py-spy on the host, then hsops diagnose again: do they compile, or stand still?",
        alternatives=("jit-compiling-not-hung", "scheduler-deadlock"),
    )


def _stuck(ev: Evidence, name: str, confidence: str, summary: str, rank: int | None = None) -> Verdict:
    return Verdict(
        name,
        confidence,
        summary,
        cite.everything(ev),
        rank=rank,
        remedy="hsops launch --replace --wait-healthy",
        next_probe="" if confidence == "high" else "hsops diagnose again in half a minute: do the stacks move?",
        alternatives=tuple(other for other in _ALIKE if other != name) if confidence != "high" else (),
    )


def _requests(ev: Evidence) -> int:
    """Requests in work by the last batch line, when it is fresh; the probe's own one-token request is not counted."""
    if not ev.log or ev.silent_s > _FRESH_S:
        return 0
    return sum(map(int, _REQUESTS.findall(_last_batch(ev))))


def _last_batch(ev: Evidence) -> str:
    rows = _BATCH.finditer(ev.log.text) if ev.log else iter(())
    last = ""
    for match in rows:
        last = match.group(0)
    return last
