"""Damaged files here, sources that change or lie, disks that fill up: noticed, told, and mended where possible."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hsops.core.dumps import MANIFEST
from hsops.core.inventory import HostSpec
from tests.dump_maker import make_big, rewrite
from tests.fetching import envelope, kill, place, received, wait_for

MIB = 1 << 20
Gated = Callable[..., HostSpec]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "empty", "link"])
def test_a_damaged_file_is_noticed_and_fetched_again(damage: str, this_machine: HostSpec, tmp_path: Path) -> None:
    """verify names it, fetch brings it; the others are left alone."""
    here = place(this_machine, tmp_path, MIB, MIB, MIB)
    here.fetch()
    victim = here.to / "s1.safetensors"
    content = bytearray(victim.read_bytes())
    if damage == "flip":
        content[MIB // 2] ^= 4
        victim.write_bytes(content)
    elif damage == "truncate":
        os.truncate(victim, 12345)
    elif damage == "remove":
        victim.unlink()
    elif damage == "empty":
        victim.write_bytes(b"")
    else:
        victim.rename(here.to / ".moved")
        victim.symlink_to(here.to / ".moved")
    assert {f["file"] for f in here.verify(expect=1)["data"]["findings"]} == {"s1.safetensors"}

    data = here.fetch()["data"]

    assert data["fetched"] == 1
    here.verify()


def test_silent_rot_is_found_by_recheck(this_machine: HostSpec, tmp_path: Path) -> None:
    """A disk that changes a bit changes no time stamp: only reading the file tells."""
    here = place(this_machine, tmp_path, MIB, MIB)
    here.fetch()
    manifest, victim = here.to / MANIFEST, here.to / "s0.safetensors"
    content = bytearray(victim.read_bytes())
    content[500] ^= 1
    before = victim.stat()
    victim.write_bytes(content)
    after = victim.stat()
    # as if the inode had not changed: the manifest's stamp is what it is now
    text = manifest.read_text().replace(str(before.st_mtime_ns), str(after.st_mtime_ns))
    manifest.write_text(text.replace(str(before.st_ctime_ns), str(after.st_ctime_ns)))
    assert here.fetch()["data"]["fetched"] == 0

    assert here.fetch("--recheck")["data"]["fetched"] == 1
    here.verify()


def test_a_part_file_with_wrong_bytes_is_not_continued_for_long(
    this_machine: HostSpec, gated: Gated, tmp_path: Path
) -> None:
    """Its checksum is wrong at the end: it is thrown away and sent from its first byte, in the same run."""
    here = place(gated(this_machine, f"hold {MIB}"), tmp_path, 2 * MIB)
    process = here.start_fetch()
    wait_for(lambda: received(here) > MIB // 2, "half of it")
    kill(process)
    (part,) = here.to.glob("*.part")
    with part.open("r+b") as file:
        file.seek(1000)
        file.write(b"rotten")

    data = here.fetch()["data"]

    assert (data["samples"], data["troubles"]) == (1, [])
    here.verify()


def test_a_source_that_changes_with_its_line_is_taken_anew(
    this_machine: HostSpec, gated: Gated, tmp_path: Path
) -> None:
    """The sample is extracted again while it is copied: the new content comes, never a mixture."""
    here = place(gated(this_machine, f"pause {MIB}"), tmp_path, 3 * MIB)
    process = here.start_fetch()
    wait_for(lambda: received(here) > MIB // 2, "the first bytes")
    again = tmp_path / "again"
    sample = make_big(again, "s0", 3 * MIB, seed=1)
    (again / sample.file).rename(here.source / sample.file)
    rewrite(here.source, sample)
    (tmp_path / "gate/gate.go").touch()

    data = envelope(process, 0)["data"]

    assert data["troubles"] == []
    here.assert_nothing_torn()
    here.verify()


def test_a_source_that_changes_without_a_line_is_told(this_machine: HostSpec, gated: Gated, tmp_path: Path) -> None:
    """Somebody writes into the dump on the host: exit 3 with its name, the others come."""
    here = place(gated(this_machine, f"pause {MIB}"), tmp_path, 3 * MIB, 1000)
    process = here.start_fetch("--streams", "1")
    wait_for(lambda: received(here) > MIB // 2, "the first bytes")
    with (here.source / "s0.safetensors").open("ab") as file:
        file.write(b"more")
    (tmp_path / "gate/gate.go").touch()

    data = envelope(process, 3)["data"]

    assert [(t["id"], t["code"]) for t in data["troubles"]] == [("s0", "changed")]
    assert data["samples"] == 1
    here.assert_nothing_torn()


@pytest.mark.parametrize("how", ["missing", "link", "folder"])
def test_a_source_that_is_not_there_is_told(how: str, this_machine: HostSpec, tmp_path: Path) -> None:
    """One file of the host is gone, or is no file: exit 3 with its name, the others come."""
    here = place(this_machine, tmp_path, 1000, 1000)
    (here.source / "s0.safetensors").rename(tmp_path / "away")
    if how == "link":
        (here.source / "s0.safetensors").symlink_to(tmp_path / "away")
    elif how == "folder":
        (here.source / "s0.safetensors").mkdir()

    data = here.fetch(expect=3)["data"]

    assert [(t["id"], t["code"]) for t in data["troubles"]] == [("s0", "missing" if how == "missing" else "unreadable")]
    assert data["samples"] == 1


def test_names_from_the_host_never_become_paths(this_machine: HostSpec, tmp_path: Path) -> None:
    """A manifest that names other files: the lines are left out with a warning, nothing is written elsewhere."""
    here = place(this_machine, tmp_path, 1000)
    line = (here.source / MANIFEST).read_text()
    for bad in ("../../evil", "/etc/evil", "a/b", "..", ".ssh", "s0\\n"):
        with (here.source / MANIFEST).open("a") as file:
            file.write(line.replace('"id": "s0"', f'"id": "{bad}"'))

    data = here.fetch()["data"]

    assert data["samples"] == 1
    assert sorted(p.name for p in here.to.iterdir()) == [MANIFEST, "s0.safetensors"]


@pytest.fixture
def small_disk(tmp_path: Path) -> object:
    """A file system of 8 MiB at the target."""
    to = tmp_path / "to"
    to.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "hsops-test", str(to)], check=True)
    yield to
    subprocess.run(["umount", str(to)], check=True)


@pytest.mark.usefixtures("small_disk")
def test_what_will_not_fit_is_refused_before_it_is_sent(this_machine: HostSpec, tmp_path: Path) -> None:
    """The message has both figures, and nothing was written."""
    here = place(this_machine, tmp_path, 6 * MIB, 6 * MIB)

    (error,) = here.fetch(expect=1)["errors"]

    assert error["type"] == "SpaceError"
    assert received(here) == 0


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_fills_up_meanwhile(this_machine: HostSpec, gated: Gated, tmp_path: Path) -> None:
    """It says so, keeps what is whole, and continues when there is room again."""
    here = place(gated(this_machine, f"pause {3 * MIB // 2}"), tmp_path, 2 * MIB, 2 * MIB, 2 * MIB)
    process = here.start_fetch("--streams", "1")
    wait_for(lambda: received(here) > MIB, "the first bytes")
    ballast = here.to / ".ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(here.to).f_bavail * 4096 - MIB)
    (tmp_path / "gate/gate.go").touch()

    (error,) = envelope(process, 1)["errors"]

    assert error["type"] == "SpaceError"
    here.assert_nothing_torn()
    ballast.unlink()
    missing = here.missing()
    assert here.fetch()["data"]["bytes_sent"] == missing
    here.verify()


def test_a_second_fetch_to_the_same_folder_is_refused(this_machine: HostSpec, gated: Gated, tmp_path: Path) -> None:
    """Two writers would take each other's part files: exit 6."""
    here = place(gated(this_machine, "hold 1000000"), tmp_path, 2 * MIB)
    first = here.start_fetch()
    wait_for(lambda: received(here) > 500_000, "the first bytes")

    (error,) = here.fetch(expect=6)["errors"]

    assert error["type"] == "LockedError"
    kill(first)
    here.fetch()


def test_ctrl_c_keeps_what_came(this_machine: HostSpec, gated: Gated, tmp_path: Path) -> None:
    """Exit 130 within seconds, although the stream says nothing."""
    here = place(gated(this_machine, "hold 1500000"), tmp_path, MIB, MIB)
    process = here.start_fetch("--streams", "1")
    wait_for(lambda: received(here) > 1_400_000, "the first file and more")

    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    envelope(process, 130)

    assert time.monotonic() - started < 20  # a stream that says nothing is given up after 30 s
    here.assert_nothing_torn()
    missing = here.missing()
    assert here.fetch()["data"]["bytes_sent"] == missing
