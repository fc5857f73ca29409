"""Health has levels: no connection, starting, up, answers, stable. Probed with httpx through the host's tunnel.

The port opens only when the model is loaded; then ``/health`` says 503 until the warm-up is over (before 0.5.4 it says
200 at once, so a completion is the real proof). A healthy ``/health`` generates a token and takes about a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx

REFUSED, STARTING, UP, ANSWERS, STABLE = "refused", "starting", "up", "answers", "stable"
STABLE_PROBES = 2  # good ones in a row after the completion
LONGEST_S = 30.0  # /health itself gives up after 20 s
_SLOW_S, _FAST_S = 2.0, 0.25  # between probes: before and after the port is known to be open


@dataclass(frozen=True, slots=True)
class Probe:
    """One look. ``status`` is the HTTP status; 0: no connection; -1: a connection and no answer in time."""

    path: str
    status: int
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Ladder:
    """How far up the server is. A bad probe on the way brings it down again."""

    level: str = REFUSED
    good: int = 0

    def take(self, probe: Probe) -> Ladder:
        """After one more probe."""
        if probe.status == 0:
            return Ladder(REFUSED)
        if probe.status != 200:
            return Ladder(STARTING)
        if self.level in (REFUSED, STARTING):
            return Ladder(UP)
        if self.level == UP:
            return Ladder(ANSWERS)
        good = self.good + 1
        return Ladder(STABLE if good >= STABLE_PROBES else ANSWERS, good)

    @property
    def next_path(self) -> str:
        """What to ask next."""
        return "/generate" if self.level == UP else "/health"


class Prober(AbstractContextManager["Prober"]):
    """Climbs the ladder in a thread of its own, so that a probe that hangs for 20 s does not stop the watch.

    Args:
        port: of this machine, that reaches the server.
        api_key: sent as a bearer token; "" without.
        report: called from the thread with every probe and the ladder after it.
    """

    def __init__(self, port: int, *, api_key: str, report: Callable[[Probe, Ladder], None]) -> None:
        self._port, self._key, self._report = port, api_key, report
        self._over, self._open = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._climb, name="health", daemon=True)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._open.set()
        self._thread.join(0.5)  # a probe under way is left to its own deadline

    def port_is_open(self) -> None:
        """The log says so: look often from now on."""
        self._open.set()

    def _climb(self) -> None:
        ladder = Ladder()
        with connect(self._port, self._key) as client:
            while not self._over.is_set() and ladder.level != STABLE:
                probe = ask(client, ladder.next_path)
                if self._over.is_set():
                    return
                ladder = ladder.take(probe)
                self._report(probe, ladder)
                if ladder.level in (REFUSED, STARTING):
                    (self._over if self._open.is_set() else self._open).wait(
                        _FAST_S if self._open.is_set() else _SLOW_S
                    )


def connect(port: int, api_key: str) -> httpx.Client:
    """A client for the server; proxies of the environment are not for it."""
    import httpx

    from hsops.remote.server import bearer

    base = f"http://127.0.0.1:{port}"
    return httpx.Client(base_url=base, headers=bearer(api_key), timeout=LONGEST_S, trust_env=False)


def ask(client: httpx.Client, path: str) -> Probe:
    """One probe. ``/generate`` asks for one token after three, without a tokenizer."""
    import httpx

    began = time.monotonic()
    try:
        if path == "/generate":
            body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
            reply = client.post(path, json=body)
        else:
            reply = client.get(path)
    except httpx.ReadTimeout:
        return Probe(path, -1, time.monotonic() - began, f"no answer in {LONGEST_S:g} s")
    except (httpx.HTTPError, OSError) as error:  # a tunnel to a closed port ends in many ways
        return Probe(path, 0, time.monotonic() - began, type(error).__name__)
    return Probe(path, reply.status_code, time.monotonic() - began, reply.text[:200] if reply.is_error else "")


def is_healthy(port: int, api_key: str, *, timeout: float = 5.0) -> bool:
    """One token from a server that should already be up: a stronger proof than ``/health``, and 15 times as fast."""
    with connect(port, api_key) as client:
        client.timeout = timeout
        return ask(client, "/generate").status == 200
