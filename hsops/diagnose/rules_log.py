"""Rules that read causes from the log's words."""

from __future__ import annotations

import re
from datetime import datetime

from hsops.core.log_errors import LogError
from hsops.core.units import clock
from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.log_text import cut, message
from hsops.diagnose.signature_table import SIGNATURES
from hsops.diagnose.signatures import CRASHED, DIED, ECHO, NAN, WARMUP_FAILED, Signature
from hsops.diagnose.taxonomy import meaning
from hsops.diagnose.verdict import Finding, Verdict

_READY = "The server is fired up and ready to roll!"
_HEARTBEAT = re.compile(r"tic start time: (\d\d:\d\d:\d\d)\. last_heartbeat time: (\d\d:\d\d:\d\d)")
_DAY = 24 * 3600
_FROZEN_S = 60  # the check itself gives up after 20 s; a heartbeat older than that by far does not come back


def named_cause(ev: Evidence) -> Verdict | None:
    """A line that names the cause, from which the server cannot go on."""
    for row in (*SIGNATURES, *_general(ev)):
        if row.stage and not _in_stage(ev, row.stage):
            continue
        if row.name == "scheduler-killed-oom" and ev.live:
            continue  # the host tells more: hsops.diagnose.rules_ended
        if row.name == "rank-straggler-load" and ev.gone_alone is not None:
            continue  # they waited for one that had ended
        hit = _hit(ev, row)
        if hit:
            return _verdict(ev, row, hit)
    return None


def gpu_fault(ev: Evidence) -> Verdict | None:
    """The kernel's log names a GPU fault, and the server does not answer."""
    if ev.healthy or not ev.own_xid:
        return None
    line = ev.own_xid[-1]
    found = next(
        (row for row in SIGNATURES if row.name.startswith(("gpu-", "xid-")) and row.pattern.search(line)), None
    )
    if found is None:
        return None
    return Verdict(
        found.name,
        "medium",
        cut(f"{meaning(found.name)}: {line}"),
        (Finding("kernel", cut(line)), *cite.everything(ev)),
        remedy=found.remedy,
        next_probe="nvidia-smi on the host; is the line as young as the trouble?",
    )


def peer_died(ev: Evidence) -> Verdict | None:
    """Ranks complain of a peer that went away, and no rank says why: the one that is silent is the suspect."""
    if not ev.log or ev.healthy or not ECHO.search(ev.log.text):
        return None
    return Verdict(
        "peer-rank-died",
        "medium",
        f"a rank went away and the others complain of it{_silent_rank_text(ev)}; its own end left no word in the log",
        (*_said(ev), *cite.everything(ev)),
        rank=silent_rank(ev),
        remedy="find out how that rank ended: dmesg -T | grep -i -e oom -e killed; hsops status",
        next_probe="hsops diagnose --run ID on the host, where the supervisor recorded how each rank ended",
    )


def heartbeat(ev: Evidence) -> Verdict | None:
    """``Health check failed`` lines: a heartbeat that stays where it is means a deadlock, a single one only load."""
    if not ev.log or ev.healthy:
        return None
    gaps = [_gap(*pair) for pair in _HEARTBEAT.findall(ev.log.text)]
    if not gaps or _answered_since(ev):
        return None
    if gaps[-1] >= _FROZEN_S:
        return Verdict(
            "scheduler-deadlock",
            "medium" if len(gaps) > 1 else "low",
            f"the schedulers have sent nothing for {clock(gaps[-1])}: the heartbeat does not move any more",
            cite.everything(ev),
            remedy="hsops launch --replace --wait-healthy",
            next_probe="" if ev.live else "hsops diagnose while it hangs: stacks of all ranks",
            alternatives=("collective-deadlock", "zmq-send-blocked", "detokenizer-stalled"),
        )
    if ev.live:
        return None
    return Verdict(
        "health-false-negative-under-load",
        "low",
        f"/health found no output for {gaps[-1]} s: long prompts do that, and restarting makes it worse",
        cite.everything(ev),
        remedy="raise SGLANG_HEALTH_CHECK_TIMEOUT (20 s) while batches go on",
        next_probe="hsops diagnose on the host: does the heartbeat stay where it is?",
    )


def silent_rank(ev: Evidence) -> int | None:
    """The only rank that did not complain when all others did."""
    if not ev.log or ev.tp < 2:
        return None
    complained = {int(e.rank[2:]) for e in ev.log.summary.errors if e.rank}
    quiet = [rank for rank in range(ev.tp) if rank not in complained]
    return quiet[0] if len(quiet) == 1 else None


def exception(ev: Evidence) -> LogError | None:
    """The scheduler's own exception; one that only echoes another rank's end does not count."""
    errors = ev.log.summary.errors if ev.log else ()
    return next((e for e in errors if e.id == "scheduler-exception" and e.role == "cause" and not _echo(e)), None)


def _general(ev: Evidence) -> tuple[Signature, ...]:
    """What says only that something died; an exception that is no echo first."""
    own = exception(ev) or (ev.log and not ECHO.search(ev.log.text))
    return (*((DIED,) if own else ()), CRASHED, WARMUP_FAILED, NAN)


def _in_stage(ev: Evidence, stage: str) -> bool:
    """It is the stage under way, or the last thing that anyone has begun."""
    last = ev.log.summary.last_milestone if ev.log else None
    return ev.log is not None and (ev.log.summary.stage == stage or (last is not None and last.id == f"{stage}-begin"))


def _hit(ev: Evidence, row: Signature) -> re.Match[str] | None:
    if not ev.log:
        return None
    text = ev.log.text
    hit = row.pattern.search(text)
    if not hit or (row.also and not re.search(row.also, text)):
        return None
    ready = text.find(_READY)
    later = ready < 0 or hit.start() > ready
    if ev.live and ev.alive:
        return hit if row.terminal and later else None
    return hit if later else None


def _verdict(ev: Evidence, row: Signature, hit: re.Match[str]) -> Verdict:
    assert ev.log
    line = _line(ev.log.text, hit.start())
    error = exception(ev)
    said = error.said if error and row.name in (DIED.name, WARMUP_FAILED.name) else message(line)
    found = [Finding("log", cut(message(line)))]
    if error and error.last:
        found.append(Finding("exception", cut(error.last)))
    if error and error.frame:
        found.append(Finding("frame", cut(error.frame)))
    return Verdict(
        row.name,
        row.confidence,
        cut(f"{meaning(row.name)}: {said}"),
        (*found, *cite.everything(ev)),
        rank=_suspect(ev) if error else _named(line) if row.name == "scheduler-killed-oom" else _rank(line, ev),
        remedy=row.remedy + _patched(ev, error),
        next_probe="" if row.confidence == "high" else "hsops logs, from this line on",
        alternatives=row.likes or (("crash-under-load",) if row is DIED and _under_load(ev, hit) else ()),
    )


def _under_load(ev: Evidence, hit: re.Match[str]) -> bool:
    """It was ready and had several requests in work when this line came."""
    assert ev.log
    before = ev.log.text[: hit.start()]
    batches = re.findall(r"#running-req: (\d+)", before[before.find(_READY) :]) if _READY in before else []
    return bool(batches) and int(batches[-1]) > 1


def _named(line: str) -> int | None:
    """The rank that the launcher names."""
    named = re.search(r"\bRank (\d+) scheduler", line)
    return int(named.group(1)) if named else None


def _suspect(ev: Evidence) -> int | None:
    """The one rank that raised; None when all did, which is a shared cause, or none did."""
    assert ev.log
    raised = {e.rank for e in ev.log.summary.errors if e.id == "scheduler-exception" and not _echo(e)}
    if ev.tp == 1:
        return 0
    return int(next(iter(raised))[2:] or -1) if len(raised) == 1 and "" not in raised else None


def _patched(ev: Evidence, error: LogError | None) -> str:
    """A word on the patches that ran, when code of the model raised."""
    patches = ev.run.patches if ev.run else {}
    if not (error and patches and "/models/" in error.frame):
        return ""
    return f"; does it go away without {', '.join(patches)}? hsops launch --replace --without-patches"


def _line(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 :].split("\n", 1)[0]


def _rank(line: str, ev: Evidence) -> int | None:
    tag = re.match(r"^\[[^\]]*\bTP(\d+)[^\]]*\]", line)
    return int(tag.group(1)) if tag and ev.tp > 1 else None


def _echo(error: LogError) -> bool:
    return bool(ECHO.search(f"{error.text} {error.last}"))


def _said(ev: Evidence) -> tuple[Finding, ...]:
    cause = ev.log.summary.cause if ev.log else None
    return (Finding("log", cut(f"{cause.rank or 'main'}: {cause.said}")),) if cause else ()


def _silent_rank_text(ev: Evidence) -> str:
    rank = silent_rank(ev)
    return f": all but TP{rank}" if rank is not None else ""


def _gap(now: str, heartbeat: str) -> int:
    then, since = (datetime.strptime(t, "%H:%M:%S") for t in (now, heartbeat))
    return int((then - since).total_seconds()) % _DAY


def _answered_since(ev: Evidence) -> bool:
    """A health probe got 200 after the last failure."""
    assert ev.log
    return '"GET /health' in ev.log.text[ev.log.text.rfind("last_heartbeat time") :] and bool(
        re.search(r'"GET /health\S* HTTP/[\d.]+" 200', ev.log.text[ev.log.text.rfind("last_heartbeat time") :])
    )
