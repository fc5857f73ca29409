"""Something else lies where fetch writes: one file's place is that file's trouble, the folder's own is told at once."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from hsops.core.dumps import MANIFEST, latest, parse_sample
from hsops.core.inventory import HostSpec
from hsops.fetch.dumps import file_of
from hsops.fetch.folder import PIECES
from hsops.fetch.ledger import LEDGER
from hsops.fetch.tree import OURS
from tests.fetching import Place, place

MIB = 1 << 20


def parts(here: Place) -> dict[str, Path]:
    """Where each sample's bytes go first."""
    samples = latest(map(parse_sample, (here.source / MANIFEST).read_text().splitlines()))
    return {s.id: here.to / file_of(s, "{}").part for s in samples.values()}


def lay(path: Path, what: str) -> None:
    """Put something there that is no file."""
    path.parent.mkdir(exist_ok=True)
    if what == "folder":
        path.mkdir()
        (path / "mine").write_text("mine")
    elif what == "link":
        path.symlink_to(path.parent.parent / "elsewhere")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        folder = os.open(path.parent, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")  # an address has room for a hundred characters
        os.close(folder)


def test_what_lies_at_a_part_file_stops_no_other(this_machine: HostSpec, tmp_path: Path) -> None:
    """Told by name and place (exit 3), left as it is, nothing written through it; moved away, the file comes."""
    here = place(this_machine, tmp_path, 1000, 1000, 1000, 1000, 1000, 40 * MIB)
    whats, there = ("folder", "link", "pipe", "socket"), parts(here)
    for i, what in enumerate(whats):
        lay(there[f"s{i}"], what)
    lay(Path(f"{there['s5']}{PIECES}"), "folder")

    data = here.fetch("--streams", "4", expect=3)["data"]

    assert data["samples"] == 1 and data["streams"] > 1  # s5 is cut, for all of them
    assert {t["id"]: t["code"] for t in data["troubles"]} == {f"s{i}": "local" for i in (0, 1, 2, 3, 5)}
    assert all(str(there[t["id"]]) in t["message"] and "move it away" in t["message"] for t in data["troubles"])
    assert (there["s0"] / "mine").read_text() == "mine" and there["s1"].is_symlink()
    assert not (tmp_path / "elsewhere").exists()
    for path in here.to.glob("*.part*"):
        path.rename(tmp_path / path.name)
    assert here.fetch()["data"]["samples"] == 6
    here.verify()


@pytest.mark.parametrize(
    "name, what",
    [
        (MANIFEST, "pipe"),
        (MANIFEST, "link"),
        (f".{MANIFEST}.new", "folder"),
        (LEDGER, "pipe"),
        (LEDGER, "link"),
        (OURS, "link"),
    ],
)
def test_what_lies_at_a_file_of_hsops_is_told(name: str, what: str, this_machine: HostSpec, tmp_path: Path) -> None:
    """An error that names it: the pipe is not waited at, and through the link nothing is written."""
    here = place(this_machine, tmp_path, 1000)
    (tmp_path / "elsewhere").mkdir()
    lay(here.to / name, what)
    if name.endswith(".new"):  # made when lines are to be left out
        (here.to / MANIFEST).write_text("not a line of ours\n")
    any_folder = ("--from", str(here.source)) if name == OURS else ()

    process = here.start_fetch("--evict", *any_folder)
    out, err = process.communicate(timeout=60)

    assert process.returncode in (1, 2), (out, err)
    (error,) = json.loads(out.splitlines()[-1])["errors"]
    assert str(here.to / name) in error["message"] and error["fix"] and "bug" not in out
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (here.source / "s0.safetensors").exists()
