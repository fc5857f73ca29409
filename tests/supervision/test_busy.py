"""``hsops status`` of a real server whose queue is full: ``make busy``."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tests.e2e.cli import Cli
from tests.supervision.results import record

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
ASKERS = 48  # of which the server runs four at a time


def test_a_full_queue_is_busy_and_not_unhealthy(hsops: Cli) -> None:
    """Its requests are told, by the server's own account; without them it is healthy again."""
    assert hsops("launch", "--wait-healthy").returncode == 0
    before = hsops.json("status")["data"]["runs"][0]
    over = Event()

    with ThreadPoolExecutor(ASKERS) as pool:
        for number in range(ASKERS):
            pool.submit(keep_asking, before["port"], number, over)
        try:
            busy = until(hsops, "busy")
        finally:
            over.set()
    after = until(hsops, "healthy")

    load = busy["load"]
    told = {"said": f"{load['running']} running, {load['queued']} queued ({load['source']})", "level": busy["level"]}
    record("busy", "0.5.9", {"askers": ASKERS, "before": before["health"], "after": after["health"], **told})
    assert (before["health"], before["level"]) == ("healthy", "stable")
    assert load["running"] > 0 and load["queued"] > 0
    assert (after["pid"], after["rank_pids"]) == (before["pid"], before["rank_pids"])


def until(hsops: Cli, health: str) -> dict[str, object]:
    """The run once status says so; a machine may be slow to fill a queue, or to empty it."""
    for _ in range(30):
        run: dict[str, object] = hsops.json("status")["data"]["runs"][0]
        if run["health"] == health:
            return run
    raise AssertionError(run)


def keep_asking(port: int, number: int, over: Event) -> None:
    """One request after another, each of its own prompt."""
    while not over.is_set():
        prompt = [3 + (number + i) % 200 for i in range(380)]
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with contextlib.suppress(OSError):
            urllib.request.urlopen(asked, timeout=600).read()
