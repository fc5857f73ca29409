"""How a server stands at one look: levels, and busy is not unhealthy. A real HTTP server, no SGLang."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hsops.launch.health import ANSWERS, REFUSED, STABLE, STARTING, UP
from hsops.launch.standing import Load, health_path, look, of_log

SLOW = -1  # no answer in time
Script = dict[str, int | tuple[int, object]]
TWO = [{"num_running_reqs": 12, "num_waiting_reqs": 5}, {"num_running_reqs": 1, "num_waiting_reqs": 0}]
LOADS = (200, {"loads": TWO})
GAUGES = 'sglang:num_running_reqs{tp_rank="0"} 13.0\nsglang:num_queue_reqs 5\n'


@contextmanager
def serving(script: Script) -> Iterator[tuple[int, list[str]]]:
    """A server that answers each path as told, 404 others; its port, and the paths that were asked for."""
    asked: list[str] = []
    over = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            told = script.get(self.path, 404)
            status, body = told if isinstance(told, tuple) else (told, "")
            if status == SLOW:
                over.wait(60)
                return
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode() if isinstance(body, str) else json.dumps(body).encode())

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "script,level,health",
    [
        ({"/health": 200, "/generate": 200}, STABLE, "healthy"),
        ({"/health": 503}, STARTING, "not ready"),
        ({"/health": SLOW}, STARTING, "no answer"),
        ({"/health": 200, "/generate": 500}, UP, "HTTP 500"),
        ({"/health": 200, "/generate": 401}, UP, "HTTP 401"),
        ({"/health": 200, "/generate": SLOW}, UP, "no answer"),
        ({"/health": 503, "/v1/loads": LOADS}, STARTING, "busy"),
        ({"/health": SLOW, "/v1/loads": LOADS}, STARTING, "busy"),
        ({"/health": SLOW, "/get_load": (200, [{"num_reqs": 18, "num_waiting_reqs": 5}])}, STARTING, "busy"),
        ({"/health": SLOW, "/metrics": (200, GAUGES)}, STARTING, "busy"),
        ({"/health": SLOW, "/v1/loads": (200, {"loads": []})}, STARTING, "no answer"),
        ({"/health": SLOW, "/v1/loads": (200, "what?"), "/get_load": (200, [3])}, STARTING, "no answer"),
    ],
)
def test_what_holds(script: Script, level: str, health: str) -> None:
    """The highest level that holds; a slow or refused probe of a server with requests in hand is said as busy."""
    with serving(script) as (port, _):
        found = look(port, "", patience=0.4 if SLOW in script.values() else 20.0)

    assert (found.level, found.health) == (level, health)
    if health == "busy":
        assert found.load and (found.load.running, found.load.queued) == (13, 5)
        assert "busy" in str(found) and "13 running, 5 queued" in str(found)


def test_a_closed_port() -> None:
    """Nobody listens."""
    with serving({}) as (port, _):
        pass

    found = look(port, "")

    assert (found.level, found.health) == (REFUSED, "port closed")


def test_stable_is_more_than_one_completion() -> None:
    """One /health, which takes SGLang a second, then completions: the stronger proof, and quick."""
    with serving({"/health": 200, "/generate": 200}) as (port, asked):
        look(port, "")

    assert asked == ["/health", "/generate", "/generate", "/generate"] and ANSWERS != STABLE


@pytest.mark.parametrize(
    "version,path", [("0.5.3", "/health_generate"), ("0.5.4", "/health"), ("0.5.23", "/health"), ("", "/health")]
)
def test_what_health_means_by_version(version: str, path: str) -> None:
    """Before 0.5.4 /health is 200 as soon as HTTP is up."""
    assert health_path(version) == path


STAMP = "[2026-11-29 17:40:50 TP0] "


@pytest.mark.parametrize(
    "line,load",
    [
        ("Decode batch, #running-req: 8, #token: 900, #queue-req: 3", (8, 3)),
        ("Prefill batch, #new-seq: 2, #new-token: 640, #cached-token: 0, #running-req: 1, #queue-req: 4", (3, 4)),
        ("Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, #running-req: 0, #queue-req: 0", None),
        ("The server is fired up and ready to roll!", None),
    ],
)
def test_the_last_batch_of_a_log(line: str, load: tuple[int, int] | None) -> None:
    """What the log says is in hand; a health probe's own batch is no work, and an old batch says nothing."""
    at = time_of("2026-11-29 17:40:50")
    data = f"{STAMP}{line}\n[2026-11-29 17:40:51] 127.0.0.1 - GET /health\n".encode()

    found, old = of_log(data, at + 3), of_log(data, at + 300)

    assert (found and (found.running, found.queued)) == load and old is None
    assert not found or "3 s ago" in found.source


def time_of(text: str) -> float:
    """As the log's clock tells it: without a zone."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


def test_the_log_is_asked_last() -> None:
    """When the server tells nothing of its load."""
    at = time_of("2026-11-29 17:40:50")
    line = f"{STAMP}Decode batch, #running-req: 8, #token: 900, #queue-req: 3\n".encode()

    def log() -> tuple[bytes, float]:
        return line, at + 1

    with serving({"/health": SLOW}) as (port, _):
        found = look(port, "", log=log, patience=0.3)

    assert found.health == "busy" and found.load == Load(8, 3, "the log, 1 s ago")
