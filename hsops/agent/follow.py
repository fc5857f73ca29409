"""``run-follow``: what happens to a run, as it happens: log, ends of processes, vital signs, hello files."""

import time
from typing import Any

from hsops.agent import logs, protocol, slurm
from hsops.agent.rundir import RunDir, find_run
from hsops.agent.vitals import Vitals

_TICK_S = 0.1  # how often log and state are looked at: two stat calls
_VITALS_S = 0.5
_BEAT_S = 2.0
_DEAD_BEAT_S = 0.1  # once something has ended: whoever waits a moment for last words judges when told anything
_PROBES = 1024  # bytes that health probes, one a second, write into the log before the stacks are looked at


def follow(params: "dict[str, Any]") -> "dict[str, Any]":
    """Stream a run until it has ended. ``params``: run; place in the log that the caller has (``logs.Tail``).

    Events: ``run`` (first, and whenever state.json changes), ``log`` and
    ``log-cut`` (``logs.Tail.pour``), ``vitals``, ``hello`` {ranks}; ``tick``, often, once something has ended.
    The result is the run as it is at the end.
    """
    run = find_run(params)
    tail = logs.Tail(run.log, params.get("place"))
    watch = _Watch(run)
    watch.state(force=True)
    try:
        return _until_ended(run, tail, watch)
    finally:
        watch.vitals.close()


def _until_ended(run: RunDir, tail: logs.Tail, watch: "_Watch") -> "dict[str, Any]":
    while True:
        ended = watch.ended()
        said = tail.pour()
        watch.grown(tail.offset)
        watch.state()
        watch.periodic()
        if ended and not said:
            return {"run": run.describe(), "offset": tail.offset}
        if not said:
            time.sleep(_TICK_S)


class _Watch:
    """What is looked at beside the log, each at its own pace."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._seen: Any = None
        self._hello: Any = None
        self._next_vitals = self._next_beat = 0.0
        self._pids: dict[str, int] = {}
        self._beat_s = _BEAT_S
        self._mute = (time.monotonic(), 0)  # since when, and how long the log was then
        spec, job = run.read("spec.json"), run.read("job.json")
        self._elsewhere = bool(job) and not slurm.inside(job)  # its pids are another host's
        self.vitals = Vitals(spec.get("env") or {})
        self._dump_dir = str(spec.get("dump_dir") or "")

    def state(self, *, force: bool = False) -> None:
        """Send the run when its state file has changed."""
        stamp = self.run.stamp("state.json")
        if force or stamp != self._seen:
            self._seen = stamp
            described = self.run.describe()
            self._pids = described["rank_pids"]
            ends = (described["exit"], *described["ranks"].values(), *described["helpers"].values())
            self._beat_s = _DEAD_BEAT_S if any(ends) else _BEAT_S
            self._next_beat = min(self._next_beat, time.monotonic() + self._beat_s)
            protocol.emit("run", run=described, utc_offset=time.localtime().tm_gmtoff, now=time.time())

    def ended(self) -> bool:
        """The server's own process is gone; what it wrote is in the log by now."""
        return not self.run.running()

    def grown(self, offset: int) -> None:
        """The log is so long by now. What health probes leave there does not end its silence."""
        if abs(offset - self._mute[1]) >= _PROBES:
            self._mute = (time.monotonic(), offset)

    def periodic(self) -> None:
        """Vital signs every second, new hello files, and a beat."""
        now = time.monotonic()
        if now >= self._next_vitals and self._beat_s == _BEAT_S:  # of a server that dies nobody wants them
            self._next_vitals = now + _VITALS_S
            pid = int(self.run.read("state.json").get("pid", 0))
            if not self._elsewhere:
                protocol.emit("vitals", **self.vitals.look(pid, self._pids, mute_s=now - self._mute[0]))
            self._hellos()
        elif now >= self._next_beat:
            self._next_beat = now + self._beat_s
            protocol.emit("beat" if self._beat_s == _BEAT_S else "tick")  # who follows is not shown a beat

    def _hellos(self) -> None:
        if self._dump_dir:
            found = self.run.hellos(self._dump_dir)
            if found != self._hello:
                self._hello = found
                protocol.emit("hello", ranks=found)
