"""An exec prefix before everything: all commands work in a container with its own root, processes and network."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hsops.core.command import Command
from hsops.core.errors import LockedError
from hsops.core.inventory import HostSpec
from hsops.deploy.payload import BEGIN
from hsops.remote.agent import Agent
from hsops.remote.connect import connect
from hsops.remote.lock import Lock
from tests.container import Container, container
from tests.hosts import Server, run_dir, wait_gone

MORE = """\
servers:
  tiny: { host: box, model: /ct, port: 30000, args: { api-key: k3y }, patches: [hs-dump] }
patches: { hs-dump: { boundaries: [1, 3] } }
default: tiny
"""


@dataclass(frozen=True)
class Box:
    """A container behind the session's sshd, and an inventory for it."""

    container: Container
    inventory: Path
    spec: HostSpec

    def hsops(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """``hsops`` to its end."""
        command = [sys.executable, "-m", "hsops", "-i", str(self.inventory), *words]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
            env=run_dir(),
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def do(self, *words: str) -> dict[str, Any]:
        """The data of a command that must succeed."""
        done = self.hsops(*words, "--json")
        assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        data: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["data"]
        return data


def write(folder: Path, spec: HostSpec) -> Path:
    """An inventory with one host."""
    given = {k: v for k, v in spec.model_dump(mode="json", exclude_none=True).items() if k != "name"}
    path = folder / "inventory.yaml"
    path.write_text(f"hosts: {json.dumps({spec.name: given})}\n{MORE}")
    return path


@pytest.fixture(scope="module")
def box(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """The container, over SSH."""
    folder = tmp_path_factory.mktemp("box")
    with container(folder) as made:
        spec = HostSpec(
            name="box",
            ssh=server.spec.ssh,
            ssh_config=server.spec.ssh_config,
            via=made.via,
            python="/ct/venv/bin/python",
            state_dir="/ct/state",
            dumps="/ct/dumps",
        )
        yield Box(made, write(folder, spec), spec)


def test_a_day_of_work_behind_a_prefix(box: Box, tmp_path: Path) -> None:
    """Every command, in the order of that day; outside the container nothing is written and nothing runs."""
    registry = next(box.container.ct.glob("venv/lib/python3*/site-packages/sglang/srt/models/registry.py"))
    prompts, to = tmp_path / "p.jsonl", tmp_path / "hs"
    prompts.write_text("".join(f'{{"id": "p{i}", "input_ids": [{i + 1}, 6, 7]}}\n' for i in range(20)))

    looked = json.loads(box.hsops("doctor", "--json").stdout.splitlines()[-1])  # the model is none: that is a blocker
    assert looked["data"]["hosts"]["box"]["sglang"]["version"] == "0.5.9"
    assert box.do("deploy", "--yes")["patches"][0]["done"]
    assert BEGIN in registry.read_text()
    launched = box.do("launch", "--wait-healthy")
    running = box.container.pids()
    (run,) = box.do("status")["runs"]
    assert (run["health"], run["id"]) == ("healthy", launched["run"]["id"])
    assert "up" in box.hsops("logs").stdout
    assert box.hsops("diagnose", "--json").returncode == 0
    assert box.do("extract", str(prompts))["samples"] == 20
    assert box.do("fetch", "--to", str(to))["fetched"] == 20
    assert box.do("verify", str(to))["samples"] == 20
    assert not box.do("stop")["left"]
    assert box.do("unlock", "--check")["hosts"] == [{"host": "box", "holder": None, "evicted": False}]
    assert box.do("deploy", "--revert", "--yes")["patches"][0]["done"]
    told = box.do("audit", "--verify")["hosts"]["box"]
    assert [line["action"] for line in told["lines"]] == ["deploy", "launch", "stop", "revert"] and not told["faults"]

    assert running and all(wait_gone(pid) for pid in running)
    assert BEGIN not in registry.read_text()
    assert not Path("/ct").exists()


def test_a_lock_in_there_is_shown_taken_away_and_told(box: Box) -> None:
    """Its lease and its process are the container's; the one whose lock is taken changes nothing more."""
    host = connect(box.spec)
    agent = Agent(host, python=box.spec.python, state_dir=box.spec.state_dir)
    lock = Lock(agent, "hsops deploy", reason="the night run", ttl=600.0)
    lock.call("patch-revert", what="nothing", keep=True, patch="none", place="source")
    try:
        (held,) = box.do("unlock", "--check")["hosts"]
        refused = box.hsops("deploy", "--yes", "--lock-wait", "0")
        (taken,) = box.do("unlock", "--yes", "--reason", "it hangs")["hosts"]
        with pytest.raises(LockedError, match="'hsops unlock'"):
            lock.call("patch-revert", what="nothing", patch="none", place="source")
    finally:
        host.close()
    last = box.do("audit", "--limit", "1", "--verify")["hosts"]["box"]["lines"][-1]

    assert (held["holder"]["reason"], held["holder"]["state"], held["evicted"]) == ("the night run", "held", False)
    assert refused.returncode == 6 and ": the night run) since" in refused.stderr
    assert taken["evicted"] and (last["action"], last["reason"]) == ("unlock", "it hangs")
    assert last["of"]["reason"] == "the night run"


def test_a_command_ends_in_there_when_its_client_leaves(box: Box) -> None:
    """A prefix passes no signal on, but the end of its input; nothing is left in the container."""
    host = connect(box.spec)
    with host.stream(Command(("sh", "-c", "echo here; exec sleep 1234"))) as stream:
        assert b"".join(_until(iter(stream), b"here\n"))
        until = time.monotonic() + 30
        while "sleep 1234 " not in (running := {pid: _words(pid) for pid in box.container.pids()}).values():
            assert time.monotonic() < until, running  # it says "here" just before it becomes the sleep
            time.sleep(0.01)
    host.close()

    assert all(wait_gone(pid) for pid in running)


@pytest.mark.parametrize("ssh", ["", "local"])
@pytest.mark.parametrize(
    "via,said",
    [
        (("no-such-docker", "exec", "box"), "not found"),
        (("nsenter", "--target", "999999999", "--mount"), "999999999"),
        (("sh", "-c", "echo the input device is not a TTY >&2; exit 1", "docker"), "the input device is not a TTY"),
        (("sh", "-c", 'exec "$@" </dev/null', "docker-without-i"), "it lets no standard input through"),
        (("true",), "it said nothing"),
    ],
)
def test_a_prefix_that_is_wrong_is_named_with_what_it_said(
    via: tuple[str, ...], said: str, ssh: str, box: Box, tmp_path: Path
) -> None:
    """Its container does not run, there is no such program, it wants a terminal, it lets no input through."""
    wrong = HostSpec(**{**box.spec.model_dump(), "via": via, "ssh": ssh or box.spec.ssh})
    command = [sys.executable, "-m", "hsops", "-i", str(write(tmp_path, wrong)), "--json", "doctor"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=run_dir())

    (error,) = json.loads(done.stdout)["errors"]
    assert (done.returncode, error["host"]) == (1, "box") and "Traceback" not in done.stderr
    assert error["message"].startswith(f"`{via[0]}") and said in error["message"]
    assert "hosts.<name>.via" in error["why"] and error["fix"].startswith("try it on the host: echo hello | ")


def _until(pieces: Iterator[bytes], end: bytes) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        if piece.endswith(end):
            return


def _words(pid: int) -> str:
    """What it was started as; empty when it has ended since it was listed, as the start's own helpers do."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
