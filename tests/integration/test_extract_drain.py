"""extract --drain: a stand-in that captures, under the real supervisor; the command line does both at once."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hsops.core.dumps import MANIFEST
from hsops.core.files import locked_folder
from hsops.core.inventory import HostSpec
from hsops.lab import sshd
from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost
from hsops.remote.log import read_log
from tests.fetching import Place, envelope, place, wait_for
from tests.hosts import Server, ServerFactory, inventory_text
from tests.running import VICTIMS
from tests.running import start as start_victim

PROMPTS = 40


@dataclass(frozen=True)
class Site:
    """A server of this machine, prompts for it, and a folder for its dumps.

    Args:
        agent: of the server.
        here: inventory, dump folder and local folder.
        prompts: the file.
    """

    agent: Agent
    here: Place
    prompts: Path

    def serve(self, *words: str, name: str = "tiny", agent: Agent | None = None, dumps: Path | None = None) -> None:
        """A server that is up."""
        agent, folder = agent or self.agent, dumps or self.here.source.with_name(name)
        env = {"PYTHONPATH": str(VICTIMS.parents[1]), "SGLANG_HS_DUMP_DIR": "{dump_dir}", "SGLANG_HS_RUN": "{run}"}
        kind = {"victim": "serving.py", "server": name, "tp": 1, "dump_dir": str(folder)}
        run = start_victim(agent, "{port}", *words, env=env, **kind)
        assert any(b"up\n" in piece for piece in read_log(agent, run.id, follow=True))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Extract and fetch."""
        return self.here.start("extract", str(self.prompts), "--drain", str(self.here.to), "--json", *words)

    @property
    def go(self) -> Path:
        """What a server that holds waits for."""
        return self.prompts.with_name("go")

    def asked(self) -> set[str]:
        """Samples that a server was asked for."""
        return set((self.here.source / "asked").read_text().split())

    def lines(self) -> set[str]:
        """Samples that the host's manifest names."""
        path = self.here.source / MANIFEST
        text = path.read_text() if path.exists() else ""
        return {json.loads(line)["id"] for line in text.splitlines()}

    def home(self) -> set[str]:
        """Dumps that are here."""
        return {path.stem for path in self.here.to.glob("*.safetensors")}

    def assert_all_is_home(self) -> None:
        """Each once, nothing on the host, and verify says so."""
        assert self.home() == self.lines() == {f"p{i}" for i in range(PROMPTS)}
        assert list(self.here.source.glob("*.safetensors")) == []
        verified = self.here.verify("--prompts", str(self.prompts))["data"]
        assert (verified["samples"], verified["compared"]) == (PROMPTS, PROMPTS)


@pytest.fixture
def site(agent: Agent, tmp_path: Path) -> Site:
    """Nothing runs yet."""
    host = HostSpec(name="here", ssh="local", python=sys.executable, state_dir=str(tmp_path / "state"))
    dice, prompts = random.Random(0), tmp_path / "p.jsonl"
    lines = [{"id": f"p{i}", "input_ids": [dice.randrange(200) for _ in range(5)]} for i in range(PROMPTS)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Site(agent, place(host, tmp_path), prompts)


def test_extract_and_fetch_go_on_at_once_and_again(site: Site) -> None:
    """What is extracted comes while the rest is; a rerun extracts nothing of what the host has not any more."""
    site.serve(f"holds={site.go}", "free=10")

    process = site.start()
    wait_for(lambda: len(site.home()) == 10, "the dumps that there are")
    assert process.poll() is None
    site.go.touch()
    out, err = process.communicate(timeout=100)
    again = envelope(site.start(), 0)["data"]

    events = [json.loads(line) for line in out.splitlines()]
    data = events[-1]["data"]
    assert process.returncode == 0, (out[-3000:], err[-3000:])
    told = [event for event in events if event.get("event") == "progress"]
    assert {event["task"] for event in told} >= {"extract", "fetch"}
    assert 0 < max(event.get("full", 0) for event in told) <= 1  # how much of the host's file system is used
    assert (data["samples"], data["fetch"]["samples"], data["fetch"]["evicted"]) == (PROMPTS, PROMPTS, PROMPTS)
    assert (again["already"], again["fetch"]["fetched"], again["fetch"]["evicted"]) == (PROMPTS, 0, 0)
    site.assert_all_is_home()


def test_a_host_that_forgot_everything_is_asked_for_nothing_twice(site: Site) -> None:
    """Its RAM disk is empty since it was started anew: what is here is done, and the rest is extracted."""
    site.serve("die=30")
    envelope(site.start(), 7)
    made = site.home()
    shutil.rmtree(site.here.source)
    site.serve()

    data = envelope(site.start(), 0)["data"]

    assert (data["already"], data["samples"]) == (len(made), PROMPTS)
    assert site.lines() == {f"p{i}" for i in range(PROMPTS)} - made
    assert site.home() == {f"p{i}" for i in range(PROMPTS)}
    assert site.here.verify("--prompts", str(site.prompts))["data"]["compared"] == PROMPTS


def test_a_fetch_that_cannot_go_on_ends_the_extract(site: Site) -> None:
    """Somebody else writes to the folder: its error and exit code, though the extract waits for a silent server."""
    site.serve("hang=20")

    with locked_folder(site.here.to, "another fetch writes to"):
        (error,) = envelope(site.start(), 6)["errors"]

    assert error["type"] == "LockedError"
    assert str(site.here.to) in error["message"]
    assert site.home() == set()


def test_a_server_that_dies_leaves_nothing_on_the_host(site: Site) -> None:
    """What it made is here before the command ends with its death; the rerun brings the rest."""
    site.serve("die=20")

    error = envelope(site.start(), 7)["errors"][0]
    made = site.lines()
    assert error["type"] == "UnhealthyError"
    assert 0 < len(made) < PROMPTS
    assert site.home() == made
    assert list(site.here.source.glob("*.safetensors")) == []

    site.serve()
    envelope(site.start(), 0)
    site.assert_all_is_home()


@pytest.mark.parametrize("how, code", [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_interrupted_or_killed_it_leaves_no_process_and_the_rerun_continues(
    site: Site, how: signal.Signals, code: int
) -> None:
    """In the middle of both; what had its dump is not extracted again."""
    site.serve(f"holds={site.go}", "free=10")
    process = site.start()
    wait_for(lambda: len(site.home()) == 10, "the dumps that there are")
    children = psutil.Process(process.pid).children(recursive=True)

    process.send_signal(how)
    process.communicate(timeout=60)
    wait_for(lambda: not any(map(is_there, children)), "the end of its processes")
    site.go.touch()
    wait_for(lambda: site.lines() == site.asked(), "the end of what the server was asked for")
    made = site.lines()
    data = envelope(site.start(), 0)["data"]

    assert process.returncode == code
    assert (data["already"], data["samples"]) == (len(made), PROMPTS)
    site.assert_all_is_home()


def test_dumps_that_are_lost_here_are_made_again_when_asked(site: Site) -> None:
    """The host's manifest has them, its folder has not: that is told with the line that makes them again."""
    site.serve()
    envelope(site.start(), 0)
    (site.here.to / "p7.safetensors").unlink()

    told = envelope(site.start(), 3)
    data = envelope(site.start("--remake"), 0)["data"]

    assert [(e["id"], e["code"]) for e in told["errors"]] == [("p7", "missing")]
    assert f"hsops extract PROMPTS --drain {site.here.to} --remake" in told["errors"][0]["fix"]
    assert (data["already"], data["samples"], data["fetch"]["evicted"]) == (PROMPTS - 1, PROMPTS, 1)
    site.assert_all_is_home()

    shutil.rmtree(site.here.to)
    envelope(site.start(), 3)
    data = envelope(site.start("--remake"), 0)["data"]
    again = envelope(site.start("--remake"), 0)["data"]

    assert (data["already"], data["samples"], data["fetch"]["samples"]) == (0, PROMPTS, PROMPTS)
    assert (data["fetch"]["evicted"], data["fetch"]["troubles"]) == (PROMPTS, [])
    assert (again["already"], again["fetch"]["fetched"]) == (PROMPTS, 0)
    site.assert_all_is_home()


def test_of_several_servers_too(site: Site) -> None:
    """Whoever made a dump, each has its share of what is made again; without --drain nobody knows what is lost."""
    text = site.here.inventory.read_text()
    more = "servers: { other: { host: here, model: /m, patches: [hs-dump] },"
    site.here.inventory.write_text(text.replace("servers: {", more))
    site.serve()
    envelope(site.start("-s", "tiny"), 0)
    site.serve(name="other")
    shutil.rmtree(site.here.to)
    line = ("extract", str(site.prompts), "-s", "tiny,other", "--remake", "--json")

    (error,) = envelope(site.here.start(*line), 2)["errors"]
    data = envelope(site.here.start(*line, "--drain", str(site.here.to)), 0)["data"]

    rows = data["fetch"]["servers"]
    assert error["type"] == "UsageError"
    assert (data["already"], data["samples"]) == (0, PROMPTS)
    assert sum(row["evicted"] for row in rows) == sum(row["samples"] for row in rows) == PROMPTS
    assert site.home() == {f"p{i}" for i in range(PROMPTS)}


def test_what_is_left_of_another_data_set_is_none_of_its_business(site: Site) -> None:
    """The manifest names samples that went elsewhere, and one that nobody has fetched: neither comes, nor is missed."""
    site.serve()
    first = site.here.to.with_name("first")
    made = [json.loads(line) for line in site.prompts.read_text().splitlines()]
    site.prompts.write_text("".join(json.dumps({**line, "id": f"other-{line['id']}"}) + "\n" for line in made[:5]))
    envelope(site.here.start("extract", str(site.prompts), "--drain", str(first), "--json"), 0)
    site.prompts.write_text(json.dumps({"id": "stays", "input_ids": [1, 2, 3]}) + "\n")
    envelope(site.here.start("extract", str(site.prompts), "--json"), 0)
    site.prompts.write_text("".join(json.dumps(line) + "\n" for line in made))

    data = envelope(site.start(), 0)["data"]["fetch"]

    assert (data["samples"], data["evicted"], data["troubles"]) == (PROMPTS, PROMPTS, [])
    assert site.home() == {f"p{i}" for i in range(PROMPTS)}
    assert [path.stem for path in site.here.source.glob("*.safetensors")] == ["stays"]


def test_several_servers_are_drained_into_one_folder(site: Site) -> None:
    """Each in its turn while they share the prompts, also what a dead one left; a rerun has nothing to do."""
    text, other = site.here.inventory.read_text(), site.here.source.with_name("other")
    more = "servers: { other: { host: here, model: /m, patches: [hs-dump] },"
    site.here.inventory.write_text(text.replace("servers: {", more))
    site.serve("die=8")
    site.serve(f"holds={site.go}", name="other")
    line = ("extract", str(site.prompts), "-s", "tiny,other", "--drain", str(site.here.to), "--json")

    process = site.here.start(*line)
    wait_for((site.here.source / "died").exists, "its death")
    first = site.lines()
    wait_for(lambda: site.home() == first, "what the dead one left is here, while the other one works")
    assert process.poll() is None
    site.go.touch()
    data = envelope(process, 0)["data"]
    again = envelope(site.here.start(*line), 0)["data"]

    rows = {row["server"]: row["evicted"] for row in data["fetch"]["servers"]}
    assert rows == {"tiny": len(first), "other": PROMPTS - len(first)}
    assert (data["samples"], data["fetch"]["samples"], data["fetch"]["fetched"]) == (PROMPTS, PROMPTS, PROMPTS)
    assert (again["already"], again["fetch"]["fetched"]) == (PROMPTS, 0)
    assert site.home() == {f"p{i}" for i in range(PROMPTS)}
    assert [*site.here.source.glob("*.safetensors"), *other.glob("*.safetensors")] == []


@pytest.fixture
def far(new_server: ServerFactory) -> Iterator[Server]:
    """A host that may go away; what runs there is ended in any case."""
    host = new_server("far")
    yield host
    here = on(host)
    for run in runs.list_runs(here):
        runs.stop_run(here, run.id, grace=0.0)


def on(host: Server) -> Agent:
    """The agent of that host, without a connection."""
    return Agent(LocalHost(host.spec.name), python=sys.executable, state_dir=host.spec.state_dir)


def test_a_host_that_is_lost_at_the_end_keeps_nothing_of_the_others_away(site: Site, far: Server) -> None:
    """What the other server made meanwhile is here, and what was extracted is told, before the error is."""
    text, more = site.here.inventory.read_text(), inventory_text(far.spec).removeprefix("hosts:\n")
    other = "servers: { other: { host: far, model: /m, patches: [hs-dump] },"
    site.here.inventory.write_text(text.replace("servers: {", more + other))
    site.serve(name="other", agent=on(far), dumps=Path(far.spec.dumps) / "other")
    site.serve(f"holds={site.go}", "free=5")

    line = ("extract", str(site.prompts), "-s", "other,tiny", "--drain", str(site.here.to), "--json")
    process = site.here.start(*line, "--concurrency", "4")
    wait_for(lambda: len(site.home()) == PROMPTS - 4, "all but the four that the one server holds back")
    away(far)
    site.go.touch()
    out, err = process.communicate(timeout=100)

    assert process.returncode == 5, (out[-3000:], err[-3000:])
    assert site.home() == {f"p{i}" for i in range(PROMPTS)}
    assert f"{PROMPTS} samples" in out


def away(server: Server) -> None:
    """Its sshd and every connection end, for good."""
    running = sshd.status(server.folder)
    assert running
    victims = psutil.Process(running.pid).children(recursive=True)
    sshd.stop(server.folder)
    for victim in victims:
        if victim.is_running() and victim.name() == "sshd":
            victim.kill()


def is_there(process: psutil.Process) -> bool:
    """A zombie has ended."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
