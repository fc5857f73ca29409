"""fetch is killed and cut off: the rerun continues, and no torn file is ever taken for a whole one."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hsops.core.dumps import MANIFEST
from hsops.core.inventory import HostSpec
from hsops.lab import sshd
from tests.conftest import ServerFactory
from tests.fetching import envelope, kill, place, received, wait_for

MIB = 1 << 20
Gated = Callable[..., HostSpec]


@pytest.mark.parametrize(
    "at, reach", [(1, "local"), (40, "local"), (700_000, "ssh"), (2 * MIB + 17, "local"), (5 * MIB, "ssh")]
)
def test_killed_at_a_byte_and_rerun(
    at: int, reach: str, sshd_host: HostSpec, this_machine: HostSpec, gated: Gated, tmp_path: Path
) -> None:
    """After a kill -9 with N bytes received the rerun sends exactly what is missing."""
    host = gated(sshd_host if reach == "ssh" else this_machine, f"hold {at}")
    here = place(host, tmp_path, 2 * MIB, 2 * MIB, 2 * MIB, 1000)
    process = here.start_fetch("--streams", "1")
    plan = tmp_path / "gate/gate.plan"
    # the stream's own frames are part of N: what is in the files is a little less
    wait_for(lambda: received(here) >= at - 2000 and not plan.read_text(), f"{at} bytes")
    kill(process)
    here.assert_nothing_torn()
    missing = here.missing()

    data = here.fetch()["data"]

    assert data["bytes_sent"] == missing
    assert data["samples"] == 4
    here.verify()


def test_killed_at_random_moments_until_it_is_done(sshd_host: HostSpec, gated: Gated, tmp_path: Path) -> None:
    """Eight kills at random times over a slow link: every rerun starts where the last one was killed."""
    here = place(gated(sshd_host, *["slow 20000000"] * 100), tmp_path, *[1 * MIB] * 12)
    dice = random.Random(20261129)
    for _ in range(8):
        process, before = here.start_fetch("--streams", "2"), received(here)
        wait_for(lambda: received(here) != before or process.poll() is not None, "progress")  # noqa: B023
        time.sleep(dice.random() * 0.2)
        kill(process)
        here.assert_nothing_torn()
    (tmp_path / "gate/gate.plan").write_text("")
    missing = here.missing()

    data = here.fetch()["data"]

    assert data["bytes_sent"] == missing
    assert here.verify()["data"]["samples"] == 12
    assert here.fetch()["data"]["fetched"] == 0


def test_a_line_torn_by_a_kill_is_mended(this_machine: HostSpec, tmp_path: Path) -> None:
    """The manifest's last line is half there: its file is checked and adopted, nothing is sent again."""
    here = place(this_machine, tmp_path, 1000, 2000)
    here.fetch()
    manifest = here.to / MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:-20])
    assert [f["code"] for f in here.verify(expect=1)["data"]["findings"]] == ["manifest", "stray"]

    data = here.fetch()["data"]

    assert (data["fetched"], data["bytes_sent"]) == (0, 0)
    here.verify()


def test_a_lost_stream_is_opened_again_and_continues(sshd_host: HostSpec, gated: Gated, tmp_path: Path) -> None:
    """Three deaths of the sender in one run: nothing is sent twice, and it says how often."""
    here = place(gated(sshd_host, "cut 700000", "cut 100", "cut 900000"), tmp_path, *[MIB] * 4)

    data = here.fetch("--streams", "1")["data"]

    total = sum(f.stat().st_size for f in here.source.glob("*.safetensors"))
    assert (data["samples"], data["lost_streams"], data["bytes_sent"]) == (4, 3, total)
    here.verify()


def test_a_stream_that_is_always_lost_ends_in_an_error(this_machine: HostSpec, gated: Gated, tmp_path: Path) -> None:
    """Bounded: exit 5, and what came is kept."""
    here = place(gated(this_machine, "cut 700000", *["cut 0"] * 20), tmp_path, MIB, MIB)

    (error,) = here.fetch(expect=5)["errors"]

    assert "a rerun continues" in error["why"]
    (tmp_path / "gate/gate.plan").write_text("")
    missing = here.missing()
    assert missing < 2 * MIB
    assert here.fetch()["data"]["bytes_sent"] == missing


def test_the_connections_are_killed_in_the_middle(new_server: ServerFactory, gated: Gated, tmp_path: Path) -> None:
    """sshd's sessions die (a reboot of a middle box): the streams are opened again by themselves."""
    server = new_server("cutter")
    here = place(gated(server.spec, "hold 3000000"), tmp_path, *[4 * MIB] * 4)
    process = here.start_fetch("--streams", "2")
    wait_for(lambda: received(here) > 2_000_000, "some bytes")
    running = sshd.status(server.folder)
    assert running
    end_sessions(running.pid)

    data = envelope(process, 0)["data"]

    assert data["lost_streams"] >= 1
    assert data["samples"] == 4
    here.verify()


def test_sshd_goes_away_and_comes_back(new_server: ServerFactory, gated: Gated, tmp_path: Path) -> None:
    """No server at all: exit 5 in bounded time; after its return the rerun sends what is missing."""
    server = new_server("goes-away")
    here = place(gated(server.spec, "hold 3000000"), tmp_path, *[4 * MIB] * 2)
    process = here.start_fetch("--streams", "1")
    wait_for(lambda: received(here) > 2_000_000, "some bytes")
    sshd.stop(server.folder)

    envelope(process, 5)

    here.assert_nothing_torn()
    missing = here.missing()
    assert missing < 8 * MIB
    sshd.start(server.folder, alias="goes-away")
    assert here.fetch()["data"]["bytes_sent"] == missing
    here.verify()


def test_a_host_that_lets_in_few_at_once(new_server: ServerFactory, tmp_path: Path) -> None:
    """MaxStartups: from the second on, connections that are not logged in yet are dropped; all comes nevertheless."""
    server = new_server("few", extra=("MaxStartups 2:100:2",))
    here = place(server.spec.model_copy(update={"channel": "ssh"}), tmp_path, 96 * MIB)

    assert here.fetch("--streams", "6")["data"]["samples"] == 1
    here.verify()


def end_sessions(listener: int) -> None:
    """Kill the processes that sshd made for its connections."""

    for child in psutil.Process(listener).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # killing its parent ended it
            child.kill()


def test_a_large_file_comes_over_all_streams_and_goes_on_piece_by_piece(
    sshd_host: HostSpec, gated: Gated, tmp_path: Path
) -> None:
    """One file in pieces: after a kill only the pieces that were under way are sent again."""
    here = place(gated(sshd_host, *[f"hold {20 * MIB}"] * 3), tmp_path, 96 * MIB)
    process = here.start_fetch("--streams", "3")
    (source,) = here.source.glob("*.safetensors")
    lists = f"{source.name}.*.part.pieces"

    def kept() -> list[tuple[int, int]]:
        lines = [line for file in here.to.glob(lists) for line in file.read_text().split("\n")[:-1]]
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    wait_for(lambda: len(kept()) >= 3, "pieces from all streams")
    kill(process)
    done = kept()
    assert not list(here.to.glob("*.safetensors"))

    (tmp_path / "gate/gate.plan").write_text("")
    data = here.fetch("--streams", "3")["data"]

    assert data["bytes_sent"] == source.stat().st_size - sum(end - start for start, end in done)
    assert (data["samples"], data["bad_checksums"]) == (1, 0)
    assert not list(here.to.glob("*.part*"))
    here.verify()


def test_a_list_of_pieces_is_not_believed(this_machine: HostSpec, gated: Gated, tmp_path: Path) -> None:
    """A power cut took the bytes of a piece that is named: it is read, and sent again."""
    here = place(gated(this_machine, *[f"hold {20 * MIB}"] * 3), tmp_path, 96 * MIB)
    process = here.start_fetch("--streams", "3")

    def kept() -> int:
        return sum(file.read_text().count("\n") for file in here.to.glob("*.pieces"))

    wait_for(lambda: kept() >= 3, "pieces from all streams")
    kill(process)
    (part,) = here.to.glob("*.part")
    with part.open("r+b") as file:
        file.write(bytes(MIB))
    (tmp_path / "gate/gate.plan").write_text("")

    assert here.fetch("--streams", "3")["data"]["bad_checksums"] == 0
    here.verify()


@pytest.mark.parametrize("size, streams", [(4 * MIB, "1"), (64 * MIB, "2")])
def test_a_byte_that_is_flipped_on_the_way(
    size: int, streams: str, this_machine: HostSpec, gated: Gated, tmp_path: Path
) -> None:
    """Between the agent and us, where no cipher looks: of a file in pieces one piece is sent again, else the file."""
    here = place(gated(this_machine, "flip 3000000"), tmp_path, size)

    data = here.fetch("--streams", streams)["data"]

    (whole,) = (f.stat().st_size for f in here.source.glob("*.safetensors"))
    assert (data["samples"], data["bad_checksums"]) == (1, 1)
    assert whole < data["bytes_sent"] <= whole + min(whole, 32 * MIB)
    here.verify()
