"""A dump folder that fills up, turns read-only, goes away or has no manifest for a while, under a running writer."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hsops.core.dumps import Sample
from hsops.core.events import ignore
from hsops.payload.hsops_hs_dump.manifest import MANIFEST
from hsops.payload.hsops_hs_dump.rows import Ticket, place
from hsops.payload.hsops_hs_dump.writer import Writer
from hsops.verify.verify import verify
from tests.unit.capture_parts import InMemory, manifest, new_writer, whole_pass

DEADLINE_S = 60.0
ROW = 3 * 4 * 4 + 8


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A RAM disk over a folder."""
    if os.geteuid() != 0:
        pytest.skip("mounting a RAM disk needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "hsops-test", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def write(writer: Writer, **samples: int) -> None:
    """A pass of whole samples: name -> tokens."""
    ids, pieces = whole_pass({name: [number % 250 + 1] * number for name, number in samples.items()})
    assert writer.submit(InMemory(ids, 3), pieces) == ""


def lines(folder: Path) -> dict[str, Sample]:
    """The manifest by id."""
    try:
        found = manifest(folder)
    except (FileNotFoundError, IsADirectoryError):
        return {}
    assert len({line.id for line in found}) == len(found)
    return {line.id: line for line in found}


def eventually(ready: Callable[[], object]) -> None:
    """Within the deadline."""
    until = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)


def test_a_full_disk_fails_what_does_not_fit_and_nothing_else(tmp_path: Path) -> None:
    """Told when the dump begins, not in its middle; with room again the same sample is whole."""
    with mounted(tmp_path, "size=256k"):
        writer = new_writer(tmp_path)
        write(writer, first=1000)
        write(writer, large=256 * 1024 // ROW, small=10)
        eventually(lambda: len(lines(tmp_path)) == 3)
        found = lines(tmp_path)
        (tmp_path / "first.safetensors").unlink()
        write(writer, again=2000)
        writer.close()

        assert (found["first"].ok, found["small"].ok, lines(tmp_path)["again"].ok) == (True, True, True)
        assert "No space left on device" in found["large"].reason
        assert sorted(path.stem for path in tmp_path.glob("*safetensors*")) == ["again", "small"]


def test_a_folder_that_turns_read_only_gets_its_lines_later(tmp_path: Path) -> None:
    """Samples of that time fail; the manifest says so as soon as it can, without any further sample."""
    writer = new_writer(tmp_path)
    write(writer, before=5)
    eventually(lambda: "before" in lines(tmp_path))
    with mounted(tmp_path, "ro,size=64k"):
        write(writer, during=5, too=6)
        eventually(lambda: writer._ledger.waiting == 2)
    eventually(lambda: len(lines(tmp_path)) == 3)
    write(writer, after=5)
    writer.close()

    reasons = {id_: line.reason for id_, line in lines(tmp_path).items()}
    assert reasons.pop("before") == reasons.pop("after") == ""
    assert sorted(reasons) == ["during", "too"] and all("Read-only" in reason for reason in reasons.values())


def test_a_folder_that_is_removed_costs_what_was_being_written(tmp_path: Path) -> None:
    """The rest of a prompt has nowhere to go; the next one makes the folder anew."""
    folder = tmp_path / "dumps"
    writer, half = new_writer(folder), Ticket("half", 6)
    for first in (0, 3):
        pieces, _ = place([half], [3], [first])
        if first:
            eventually(lambda: list(folder.glob("*.part")))
            shutil.rmtree(folder)
        assert not writer.submit(InMemory([1, 2, 3], 3), pieces)
    write(writer, next=5)
    writer.close()

    found = lines(folder)
    assert not found["half"].ok and "No such file" in found["half"].reason
    assert found["next"].ok and verify(folder, None, ignore).samples == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_manifest_that_cannot_be_written_gets_true_lines_later(tmp_path: Path, kept: bool) -> None:
    """A dump that is whole waits for its line; if somebody removes it meanwhile, the line says that."""
    writer = new_writer(tmp_path)
    (tmp_path / MANIFEST).rename(tmp_path / "aside")
    (tmp_path / MANIFEST).mkdir()
    write(writer, a=5, b=7)
    eventually(lambda: writer._ledger.waiting == 2)
    if not kept:
        (tmp_path / "b.safetensors").unlink()
    (tmp_path / MANIFEST).rmdir()
    (tmp_path / "aside").rename(tmp_path / MANIFEST)
    eventually(lambda: len(lines(tmp_path)) == 2)
    writer.close()

    found = lines(tmp_path)
    assert found["a"].ok and found["b"].ok == kept
    assert kept or "removed before the manifest could be written" in found["b"].reason
    assert [f for f in verify(tmp_path, None, ignore).findings if f.code != "stray"] == []
