"""fetch --follow, --evict and --dry-run: while the host writes, and what is removed there."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hsops.core.dumps import MANIFEST, parse_sample
from hsops.core.errors import HsopsError
from hsops.core.events import ignore
from hsops.core.inventory import HostSpec
from hsops.fetch.dumps import Dumps, Until
from hsops.fetch.fetch import fetch
from hsops.fetch.ledger import LEDGER
from hsops.fetch.pace import Streams
from hsops.fetch.pull import Wish
from hsops.remote.agent import Agent
from hsops.remote.connect import connect
from tests.dump_maker import fail, make_big
from tests.fetching import Place, envelope, place, wait_for

MIB = 1 << 20


@pytest.fixture
def here(tmp_path: Path) -> Place:
    """This machine, with three dumps."""
    host = HostSpec(name="here", ssh="local", python=sys.executable, state_dir=str(tmp_path / "state"))
    return place(host, tmp_path, MIB, MIB, MIB)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """On this machine."""
    with closing(connect(HostSpec(name="here", ssh="local", python=sys.executable))) as host:
        yield Agent(host, python=sys.executable, state_dir=str(tmp_path / "state"))


def ledger(here: Place, state: str) -> list[str]:
    """Names in the ledger."""
    lines = [json.loads(line) for line in (here.to / LEDGER).read_text().splitlines()]
    return [line["name"] for line in lines if line["state"] == state]


def left(here: Place) -> set[str]:
    """Dumps on the host."""
    return {p.name for p in here.source.glob("*.safetensors")}


def test_what_is_written_meanwhile_comes_and_makes_room(here: Place) -> None:
    """Until the manifest names as many as were asked for; failed samples count, and have no dump."""
    process = here.start_fetch("--follow", "--count", "21", "--evict")
    wait_for((here.to / MANIFEST).exists, "the first dumps")
    for number in range(3, 20):
        make_big(here.source, f"s{number}", 100_000)
    fail(here.source, "bad", "too long")

    data = envelope(process, 0)["data"]

    assert (data["samples"], data["evicted"], data["kept"]) == (20, 20, {})
    assert left(here) == set()
    assert (
        sorted(ledger(here, "copied"))
        == sorted(ledger(here, "evicted"))
        == sorted(f"s{i}.safetensors" for i in range(20))
    )
    assert here.verify()["data"]["samples"] == 20


def test_what_came_earlier_is_removed_by_its_content(here: Place) -> None:
    """Nobody knows its inode any more; and what is gone already is not asked for again."""
    here.fetch()
    make_big(here.source, "s1", MIB, seed=7)  # written anew on the host, under an old line

    first = here.fetch("--evict")["data"]
    again = here.fetch("--evict")["data"]

    assert (first["fetched"], first["evicted"]) == (1, 3)
    assert (again["evicted"], again["kept"], len(ledger(here, "evicted"))) == (0, {}, 3)
    here.verify()


def test_nothing_is_removed_that_changed_on_the_host(here: Place) -> None:
    """Its line is old: the dump here is right by it, the one there is another."""
    here.fetch()
    other = here.source / "s1.safetensors"
    content = bytearray(other.read_bytes())
    content[-1] ^= 1
    other.write_bytes(content)

    data = here.fetch("--evict")["data"]

    assert (data["evicted"], data["kept"]) == (2, {"s1": "changed"})
    assert left(here) == {"s1.safetensors"}


@pytest.mark.parametrize("done", [0, 1000, MIB])
def test_a_dump_of_which_the_rest_came_is_removed_by_its_content(done: int, here: Place, tmp_path: Path) -> None:
    """A kill left all of the old one; the host has written another since, and not its line: that is the only copy."""
    make_big(tmp_path / "again", "s0", MIB, seed=9)
    old, host = here.source / "s0.safetensors", tmp_path / "again/s0.safetensors"
    line = parse_sample((here.source / MANIFEST).read_text().splitlines()[0])
    here.to.mkdir()
    content = old.read_bytes()
    (here.to / f"{old.name}.{line.checksum.partition(':')[2]}.part").write_bytes(content[:done])
    if done == len(content):
        host.rename(old)

    data = here.fetch("--evict")["data"]

    assert (here.to / old.name).read_bytes() == content
    assert left(here) == ({old.name} if done == len(content) else set())
    assert data["kept"] == ({"s0": "changed"} if done == len(content) else {})


def test_the_end_of_the_run_ends_it(here: Place, agent: Agent) -> None:
    """What it wrote last comes too."""
    run = subprocess.Popen(["sleep", "600"])
    dumps = Dumps(agent, str(here.source), ignore, Until(run.pid))
    found = []

    def follow() -> None:
        found.append(fetch(agent, dumps, here.to, Wish(Streams(1, 2), follow=True), ignore))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    wait_for(lambda: len(list(here.to.glob("*.safetensors"))) == 3, "what was there")
    make_big(here.source, "last", MIB)
    run.kill()
    run.wait()
    thread.join(60)

    assert len(found[0].files) == 4 and not found[0].troubles
    here.assert_nothing_torn()


def test_the_end_of_the_writer_ends_it_after_one_more_look(here: Place, agent: Agent) -> None:
    """What was written just before it said so comes, though no line was heard of."""
    over = threading.Event()
    dumps = Dumps(agent, str(here.source), ignore, Until(over=over.is_set))
    found = []

    def follow() -> None:
        found.append(fetch(agent, dumps, here.to, Wish(Streams(1, 2), follow=True, evict=True), ignore))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    wait_for(lambda: len(list(here.to.glob("*.safetensors"))) == 3, "what was there")
    make_big(here.source, "last", MIB)
    over.set()
    thread.join(60)

    assert len(found[0].files) == found[0].evicted == 4 and not found[0].troubles
    assert left(here) == set()


def test_who_asked_for_it_can_end_it(here: Place, agent: Agent) -> None:
    """What came is kept, and nothing is half there."""
    enough = threading.Event()

    def check() -> None:
        if enough.is_set():
            raise HsopsError("enough")

    dumps = Dumps(agent, str(here.source), ignore, Until(over=lambda: False))
    found = []

    def follow() -> None:
        with pytest.raises(HsopsError, match="enough"):
            fetch(agent, dumps, here.to, Wish(Streams(1, 2), follow=True, check=check), ignore)
        found.append(True)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    wait_for(lambda: len(list(here.to.glob("*.safetensors"))) == 3, "what was there")
    enough.set()
    thread.join(60)

    assert found
    here.assert_nothing_torn()


def test_without_a_run_there_is_nothing_to_follow(here: Place) -> None:
    """It takes what is there, and ends."""
    assert here.fetch("--follow")["data"]["samples"] == 3


def test_a_dry_run_changes_nothing(here: Place) -> None:
    """Sizes, and how long it would take; then the rest of them."""
    (here.to.parent / "before").mkdir()
    total = sum(p.stat().st_size for p in here.source.glob("*.safetensors"))

    data = here.fetch("--dry-run")["data"]

    assert not here.to.exists()
    assert (data["files_to_send"], data["bytes_to_send"], data["bytes"]) == (3, total, total)
    assert data["rate"] > 0 and data["eta_s"] > 0
    here.fetch()
    (here.to / "s0.safetensors").unlink()
    assert here.fetch("--dry-run")["data"]["files_to_send"] == 1
    assert not (here.to / "s0.safetensors").exists()


def test_a_count_without_follow_is_a_mistake(here: Place) -> None:
    """Said before anything is done."""
    (error,) = here.fetch("--count", "3", expect=2)["errors"]

    assert "--follow" in error["message"]


def test_every_byte_by_sha256(here: Place) -> None:
    """The host sums up what it sends, and the manifest is asked too."""
    assert here.fetch("--checksum", "sha256", "--max-rate", "20M")["data"]["bad_checksums"] == 0
    here.verify()
