"""Stacks that stand in the log itself: SGLang's watchdog and people let py-spy write them there."""

from __future__ import annotations

import re

from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.stacks import Frame, Stack, doing, waits_for_peers
from hsops.diagnose.verdict import Finding, Verdict

_THREAD = re.compile(r'^Thread (?:\S+ )?\((?P<state>active|idle)[^)]*\): "(?P<name>[^"]*)"')
_FRAME = re.compile(r"^\s+(?P<name>\S+) \((?P<file>\S+?):(?P<line>\d+)\)")


def stacks(text: str) -> tuple[Stack, ...]:
    """The threads of all dumps in a log, in order; frames from the innermost outwards."""
    found: list[tuple[re.Match[str], list[Frame]]] = []
    for row in text.split("\n"):
        if thread := _THREAD.match(row.strip()):
            found.append((thread, []))
        elif found and (frame := _FRAME.match(row)):
            found[-1][1].append(Frame(frame["name"], frame["file"], int(frame["line"])))
    return tuple(Stack(t["name"], t["name"] == "MainThread", t["state"] == "active", tuple(f)) for t, f in found)


def dumped(ev: Evidence) -> Verdict | None:
    """Where the active threads stood: the idle ones only wait for them."""
    if ev.live or not ev.log or '"' not in ev.log.text:
        return None
    active = [s for s in stacks(ev.log.text) if s.active and s.frames]
    waiting = next((s for s in active if waits_for_peers(s)), None)
    if waiting:
        return _verdict(
            ev, "collective-deadlock", waiting, "ranks wait in a collective", "zmq-send-blocked", "scheduler-deadlock"
        )
    inside = next((s for s in active if "forward_thread_func" in s.thread or doing(s) in ("forward", "result")), None)
    if inside is None:
        return None
    name = "decode-step-hang" if ev.ready else "warmup-forward-stuck"
    return _verdict(ev, name, inside, "a forward pass had not come back", "warmup-deadlock-busy-wait")


def _verdict(ev: Evidence, name: str, stack: Stack, words: str, *alternatives: str) -> Verdict:
    return Verdict(
        name,
        "low",
        f"{words} when the stacks were written: {stack.frames[0]}",
        (Finding("stacks", f"{stack.thread}: {stack.frames[0]}"), *cite.everything(ev)),
        remedy="hsops launch --replace --wait-healthy",
        next_probe="a second dump: a rank that stands in the same place twice hangs; hsops diagnose takes two",
        alternatives=alternatives,
    )
