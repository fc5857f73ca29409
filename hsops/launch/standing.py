"""How a server stands at one look: which level of health holds, and whether a slow answer is only a full queue.

What ``/health`` means differs by version: before 0.5.4 it is 200 as soon as HTTP is up, so ``/health_generate`` is
asked there; later it generates a token, unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0 (0.5.8 on). So completions
decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hsops.core.log_lines import stamp
from hsops.core.versions import numbers
from hsops.launch.health import ANSWERS, REFUSED, STABLE, STARTING, UP, Ladder, Probe, ask, connect

if TYPE_CHECKING:
    import httpx

PATIENCE_S = 5.0  # for each probe of a look
FRESH_S = 60.0  # a batch in the log that is older says nothing of now
_LOAD_S = 2.0
_TELLS = (0, 5, 4)  # since when /health generates
_BATCH = re.compile(rb"(Prefill|Decode) batch.*?#running-req: (\d+).*?#queue-req: (\d+)")
_NEW = re.compile(rb"#new-seq: (\d+), #new-token: (\d+)")
_GAUGE = re.compile(r"^sglang:num_(running|queue)_reqs(?:\{[^}]*\})? ([\d.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that the server has in hand. ``source``: who says so."""

    running: int
    queued: int
    source: str

    def __str__(self) -> str:
        return f"{self.running} running, {self.queued} queued ({self.source})"


@dataclass(frozen=True, slots=True)
class Standing:
    """One look at a server.

    Args:
        level: the highest that holds: ``refused``, ``starting`` (the port is open), ``up`` (/health), ``answers`` (a
            completion of one token), ``stable`` (and more of them).
        health: ``healthy``, ``busy``, ``not ready``, ``no answer``, ``port closed``, ``HTTP 401`` and its like.
        detail: what was asked last and what it said; empty when all is well.
        load: what keeps it busy; None when it does not matter or nobody tells.
    """

    level: str
    health: str
    detail: str = ""
    load: Load | None = None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)

    def __str__(self) -> str:
        told = f": {self.load}" if self.load else f": {self.detail}" if self.detail else ""
        return f"{self.health} ({self.level}){told}"


def look(
    port: int,
    api_key: str,
    *,
    sglang: str = "",
    log: Callable[[], tuple[bytes, float]] = lambda: (b"", 0.0),
    patience: float = PATIENCE_S,
) -> Standing:
    """Climb the ladder once, in a second or two when all is well.

    Args:
        port: of this machine, that reaches the server.
        api_key: sent as a bearer token; "" without.
        sglang: its version.
        log: gives the log's last lines, and the time now by the log's clock; asked when nobody else tells the load.
        patience: seconds for each probe.
    """
    ladder, probe = Ladder(), None
    with connect(port, api_key) as client:
        client.timeout = patience
        while ladder.level != STABLE:
            path = "/generate" if ladder.level in (UP, ANSWERS) else health_path(sglang)
            probe = ask(client, path)
            if probe.status != 200:
                break
            ladder = ladder.take(probe)
        else:
            return Standing(STABLE, "healthy")
        load = None if probe.status == 0 or _wants_key(probe) else load_of(client, log)
    return judge(ladder, probe, load)


def health_path(sglang: str) -> str:
    """The path whose 200 means that a token was generated, by version."""
    return "/health_generate" if () < numbers(sglang) < _TELLS else "/health"


def judge(ladder: Ladder, probe: Probe, load: Load | None) -> Standing:
    """What a failed probe means after the ones that went well."""
    if probe.status == 0:
        level = REFUSED if ladder.level == REFUSED else STARTING
        return Standing(level, "port closed" if level == REFUSED else "broke off", f"{probe.path}: {probe.detail}")
    level = STARTING if ladder.level == REFUSED else ladder.level
    said = "no answer" if probe.status == -1 else f"HTTP {probe.status}"
    detail = f"{probe.path}: {said} after {probe.seconds:.1f} s"
    if load and load.running + load.queued and (probe.status in (-1, 503)):
        return Standing(level, "busy", detail, load)
    health = {-1: "no answer", 503: "not ready"}.get(probe.status, f"HTTP {probe.status}")
    if _wants_key(probe):
        return Standing(level, health, f"{probe.path} wants another API key than the run was started with")
    return Standing(level, health, detail)


def load_of(client: httpx.Client, log: Callable[[], tuple[bytes, float]]) -> Load | None:
    """Requests in hand: by the server's own account, else by its metrics, else by the log's last batch."""
    import httpx

    mute = False  # the scheduler gave no answer: a second question would only wait as long again
    for path, read in _ACCOUNTS.items():
        if mute and path != "/metrics":
            continue
        try:
            reply = client.get(path, timeout=_LOAD_S)
            if reply.status_code == 200 and (found := read(reply)):
                return Load(*found, path)
        except httpx.TimeoutException:
            mute = True
        except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError):
            continue  # another may tell
    data, now = log()
    return of_log(data, now)


def of_log(data: bytes, now: float) -> Load | None:
    """The last batch of real work that a log tells of, when it is not old.

    Args:
        data: the log's last lines.
        now: seconds, by the log's clock.
    """
    for line in reversed(data.splitlines()):
        if not (match := _BATCH.search(line)) or not (told := stamp(line)):
            continue
        fresh = _NEW.search(line)
        sequences, tokens = (int(fresh.group(1)), int(fresh.group(2))) if fresh else (0, 0)
        if tokens == 1 and int(match.group(2)) + int(match.group(3)) == 0:
            continue  # a health probe's
        age = max(0.0, now - told[0])
        running = int(match.group(2)) + sequences
        return Load(running, int(match.group(3)), f"the log, {age:.0f} s ago") if age <= FRESH_S else None
    return None


def _wants_key(probe: Probe) -> bool:
    return probe.status in (401, 403)


def _of_loads(reply: httpx.Response) -> tuple[int, int] | None:
    loads = reply.json()["loads"]
    return sum(one["num_running_reqs"] for one in loads), sum(one["num_waiting_reqs"] for one in loads)


def _of_load(reply: httpx.Response) -> tuple[int, int] | None:
    loads = reply.json()
    waiting = sum(one["num_waiting_reqs"] for one in loads)
    return sum(one["num_reqs"] for one in loads) - waiting, waiting


def _of_metrics(reply: httpx.Response) -> tuple[int, int] | None:
    """Each rank may tell; they all tell the same."""
    told: dict[str, float] = {}
    for name, value in _GAUGE.findall(reply.text):
        told[name] = max(told.get(name, 0.0), float(value))
    return (int(told["running"]), int(told.get("queue", 0))) if "running" in told else None


# /v1/loads since 0.5.9, /get_load before it; both ask the scheduler, which answers between two batches; /metrics
# (--enable-metrics) is told by the HTTP process itself
_ACCOUNTS: Mapping[str, Callable[[httpx.Response], tuple[int, int] | None]] = {
    "/v1/loads": _of_loads,
    "/get_load": _of_load,
    "/metrics": _of_metrics,
}
