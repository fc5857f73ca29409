"""When a watch over a healthy server calls for a diagnosis."""

from __future__ import annotations

from typing import Any

import pytest

from hsops.core.errors import UnreachableError
from hsops.core.events import Event
from hsops.core.runs import Run, parse_run
from hsops.diagnose.watch import EVERY_S, Heart, wait_for_silence
from hsops.remote.local import LocalHost

GOOD, MUTE = {"status": 200}, {"error": "timeout"}
NOISE = 'INFO:     127.0.0.1:50510 - "GET /health_generate HTTP/1.1" 503 Service Unavailable\n'
BATCH = "[2026-11-29 17:44:00 TP0] Decode batch. #running-req: 4, #token: 1024\n"


def a_run() -> Run:
    """One that lives."""
    told = {
        "id": "1201-000000-0000",
        "server": "tiny",
        "phase": "running",
        "pid": 9,
        "started": 0.0,
        "port": 1,
        "tp": 2,
    }
    rest = {
        "spec_hash": "s",
        "directory": "/r",
        "log": "/r/server.log",
        "dump_dir": "",
        "patches": {},
        "sglang": "0.5.9",
    }
    return parse_run(
        {**told, **rest, "argv": [], "exit": None, "ranks": {}, "helpers": {}, "rank_pids": {}, "left": []}
    )


def pulse(health: dict[str, Any], text: str = "", *, alive: bool = True) -> dict[str, Any]:
    """As the agent tells it."""
    return {"alive": alive, "health": health, "text": text, "end": 0}


@pytest.mark.parametrize(
    "health,text,lives",
    [
        (GOOD, "", True),
        (MUTE, BATCH, True),
        (MUTE, NOISE + 'INFO:     127.0.0.1:5 - "POST /generate HTTP/1.1" 200 OK\n', True),
        (MUTE, 'INFO:     127.0.0.1:5 - "POST /generate HTTP/1.1" 503\n', False),
        (MUTE, "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.\n", False),
        (MUTE, NOISE, False),
        (MUTE, "", False),
        ({"status": 503}, "\n", False),
    ],
)
def test_signs_of_life(health: dict[str, Any], text: str, lives: bool) -> None:
    """A token, or a line that tells of work; what a hung server says of the canaries themselves is none."""
    heart = Heart(last=100.0).after(pulse(health, text), 140.0)

    assert heart.silent_s(141.0) == (1.0 if lives else 41.0)


def test_a_start_is_not_silence() -> None:
    """Before the first token nothing counts: ``hsops launch`` watches that."""
    heart = Heart().after(pulse(MUTE, BATCH), 50.0)

    assert heart.silent_s(5000.0) == 0.0


class Host:
    """An agent that tells one pulse after another; an exception is raised, as a lost link does."""

    host = LocalHost("here")

    def __init__(self, *pulses: dict[str, Any] | Exception, takes: float) -> None:
        self.pulses, self.takes, self.time, self.said = list(pulses), takes, 0.0, list[Event]()

    def call(self, _verb: str, **_: object) -> dict[str, Any]:
        self.time += self.takes
        found = self.pulses.pop(0) if len(self.pulses) > 1 else self.pulses[0]
        if isinstance(found, Exception):
            raise found
        return found

    def pause(self, seconds: float) -> None:
        self.time += seconds

    def watch(self, run: Run) -> Heart:
        """A watch by this host's clock."""
        return wait_for_silence(self, run, emit=self.said.append, now=lambda: self.time, pause=self.pause)  # type: ignore[arg-type]


def test_thirty_seconds_of_silence_are_enough() -> None:
    """From the last token on, whatever the log says of the probes themselves."""
    host = Host(pulse(GOOD), pulse(GOOD), pulse(MUTE, NOISE), takes=5.0)

    heart = host.watch(a_run())

    assert heart.last == 2 * 5.0 + EVERY_S
    assert 30.0 <= heart.silent_s(host.time) <= 40.0


def test_a_lost_link_is_no_silence() -> None:
    """The host cannot be reached for long, the server lives on: silence counts from when somebody looks again."""
    gone = [UnreachableError("no route", host="here")] * 8
    host = Host(pulse(GOOD), *gone, pulse(MUTE), pulse(GOOD), pulse(GOOD, alive=False), takes=1.0)

    heart = host.watch(a_run())

    assert not heart.alive
    assert host.time > 40


def test_a_server_that_is_gone_is_diagnosed_at_once() -> None:
    """Nobody waits for a dead one."""
    host = Host(pulse(GOOD), pulse({"error": "refused"}, alive=False), takes=0.1)

    assert not host.watch(a_run()).alive
    assert host.time < 10
