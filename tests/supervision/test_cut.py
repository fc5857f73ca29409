"""A client, sshd or the network goes while a real SGLang starts and serves: ``make cut``."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hsops import lab as labs
from hsops.agent import procs
from hsops.lab import Lab, sshd
from tests.cable import Cable, cable, reach_through, why_not
from tests.clients import Client, begin, until_lost
from tests.e2e.cli import Cli
from tests.hosts import Server, ServerFactory
from tests.supervision.results import record

CUT_S = float(os.environ.get("HSOPS_CUT_S", "60"))
START_S = 600.0  # for a slowed start, on a machine that does other things too
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@dataclass
class Scene:
    """A real server behind an sshd of its own, reached through a cable."""

    folder: Path
    inventory: Path
    wire: Cable
    door: Server
    run: dict[str, Any]

    def begin(self, name: str, *words: str) -> Client:
        """hsops at the other end of the cable."""
        return begin(self.folder / name, self.inventory, *words, inside=self.wire.inside)

    @property
    def log(self) -> Path:
        """The server's."""
        return Path(self.run["log"])

    def grow(self) -> int:
        """Ask the server for something, on this machine, past the cable; how long the log is then."""
        with contextlib.suppress(OSError):  # it does not listen yet
            urllib.request.urlopen(f"http://127.0.0.1:{self.run['port']}/v1/models", timeout=30).read()
        return self.log.stat().st_size


@pytest.fixture
def scene(lab: Lab, new_server: ServerFactory, tmp_path: Path) -> Iterator[Scene]:
    """Nothing runs yet; whatever does is stopped."""
    if reason := why_not():
        pytest.skip(reason)
    labs.up(lab.layout.home, fault="slow-load")  # so that it still starts when the link comes back
    with cable() as wire:
        door = new_server("lab", extra=at_the_cable(wire))
        reach_through(wire, door.folder)
        content = yaml.safe_load(lab.inventory.read_text())
        content["hosts"]["lab"].update(ssh_config=str(door.folder / "ssh_config"), keepalive=1)
        content["servers"]["tiny"]["patches"] = []
        content["servers"]["tiny"]["env"]["HSOPS_LAB_SLOW_LOAD_S"] = str(CUT_S + 30)
        path = tmp_path / "cut.yaml"
        path.write_text(yaml.safe_dump(content))
        yield Scene(tmp_path, path, wire, door, {})
    near = Cli(lab.inventory)  # the lab's own sshd, which nobody has cut off
    assert near("stop").returncode == 0
    labs.up(lab.layout.home)


def at_the_cable(wire: Cable) -> tuple[str, ...]:
    """Where sshd listens, besides this machine's own loopback."""
    return (f"ListenAddress {wire.address}",)


def launched(scene: Scene) -> tuple[Client, Client]:
    """A launch that waits, up to the first milestone of a rank, and a follower of its log."""
    waiter = scene.begin("waiter", "launch", "--wait-healthy")
    waiter.until(lambda: "started" in waiter.errors)
    near = Cli(scene.inventory)
    scene.run = near.json("status")["data"]["runs"][0]
    follower = scene.begin("follower", "logs", "-f")
    follower.until(lambda: b"TP1" in follower.out.read_bytes())
    return waiter, follower


def ended(scene: Scene, what: str, when: str, seen: dict[str, Any], *clients: Client) -> None:
    """Stop the server; each client must have its log to the last byte."""
    run = Cli(scene.inventory).json("status")["data"]["runs"][0]
    before = scene.run["rank_pids"].items()  # of those that had shown their titles by then
    same = (run["id"], run["pid"]) == (scene.run["id"], scene.run["pid"]) and before <= run["rank_pids"].items()
    healthy = (
        "healthy, the same processes" if same and run["health"] == "healthy" else f"{run['phase']} {run['health']}"
    )
    scene.grow()
    assert Cli(scene.inventory)("stop").returncode == 0
    codes = [client.end() for client in clients]
    log = scene.log.read_bytes()
    equal = all(hashlib.sha256(one.out.read_bytes()).digest() == hashlib.sha256(log).digest() for one in clients)
    record("cuts", what, {"when": when, "log": len(log), "equal": equal, "server": healthy, **seen})
    assert equal and healthy.startswith("healthy") and set(codes) == {0}, [one.errors for one in clients]


def away(scene: Scene, cut: Callable[[], None], mend: Callable[[], None], *clients: Client) -> dict[str, Any]:
    """Cut off for CUT_S seconds and until each client has noticed; the log grows meanwhile, if the server serves."""
    cut()
    began, size = time.monotonic(), scene.log.stat().st_size
    until_lost(*clients)
    while time.monotonic() - began < CUT_S:
        scene.grow()
        time.sleep(1.0)
    grown = scene.grow() - size
    mend()
    return {"away_s": time.monotonic() - began, "while_away": grown}


def test_the_network_is_cut_while_it_starts_and_while_it_serves(scene: Scene) -> None:
    """A minute each."""
    waiter, follower = launched(scene)
    scene.run = Cli(scene.inventory).json("status")["data"]["runs"][0]

    starting = away(scene, scene.wire.pull, scene.wire.plug, waiter, follower)
    assert waiter.end(START_S) == 0, waiter.errors
    again = scene.begin("second", "logs", "-f")
    again.until_grown()
    serving = away(scene, scene.wire.pull, scene.wire.plug, again)
    again.until_grown()

    assert serving["while_away"] > 0
    ended(scene, "network cut", "starting", starting, follower)
    ended_like(scene, "network cut, served", "serving `logs -f`", serving, again)


def ended_like(scene: Scene, what: str, when: str, seen: dict[str, Any], client: Client) -> None:
    """After ``ended``: one more client has the same log."""
    code, log = client.end(), scene.log.read_bytes()
    equal = hashlib.sha256(client.out.read_bytes()).digest() == hashlib.sha256(log).digest()
    record("cuts", what, {"when": when, "log": len(log), "equal": equal, "server": "as above", **seen})
    assert equal and code == 0, client.errors


def test_a_killed_client_and_an_sshd_that_is_restarted(scene: Scene) -> None:
    """``kill -9`` of both clients while it starts; others take over; then sshd goes with all sessions, and comes."""
    waiter, follower = launched(scene)
    scene.run = Cli(scene.inventory).json("status")["data"]["runs"][0]

    for client in (waiter, follower):
        client.child.send_signal(signal.SIGKILL)
        client.child.wait(10)
    torn = follower.out.read_bytes()
    waiter, follower = scene.begin("waiter-2", "launch", "--wait-healthy"), scene.begin("follower-2", "logs", "-f")
    follower.until_grown()
    waiter.until(lambda: "picked up" in waiter.errors)

    def stop() -> None:
        sshd.stop(scene.door.folder)

    def start() -> None:
        sshd.start(scene.door.folder, alias="lab", extra=at_the_cable(scene.wire))
        reach_through(scene.wire, scene.door.folder)

    seen = away(scene, stop, start, waiter, follower)
    assert waiter.end(START_S) == 0, waiter.errors

    assert scene.log.read_bytes().startswith(torn)
    ended(scene, "clients killed, then sshd stopped and started", "starting", seen, follower)
    assert not procs.Snapshot().shows(scene.run["id"], scene.run["log"])
