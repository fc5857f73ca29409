"""agent.evict and fetch.evict: nothing is removed that is not safe elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hsops.agent import evict as agent_evict
from hsops.agent.protocol import Refusal
from hsops.core.checksum import checksum_of
from hsops.core.errors import RemoteError, UnreachableError
from hsops.core.events import ignore
from hsops.fetch import evict as evict_
from hsops.fetch.dumps import DumpLayout, file_of
from hsops.fetch.evict import LEDGER, Evictor
from hsops.fetch.folder import open_folder
from tests.dump_maker import make


def asked(path: Path, *, inode: bool = True) -> list[object]:
    """The request for a file as it is now."""
    found = path.stat()
    return [
        path.name,
        found.st_size,
        *((found.st_ino, found.st_mtime_ns) if inode else (0, 0)),
        checksum_of(path, "crc32"),
    ]


def evict(folder: Path, *files: list[object]) -> dict[str, Any]:
    """What the agent answers."""
    return agent_evict.evict({"folder": str(folder), "files": list(files)})


@pytest.mark.parametrize("inode", [True, False])
def test_a_file_as_it_was_copied_is_removed(tmp_path: Path, inode: bool) -> None:
    """By its inode, or by its content."""
    file = tmp_path / "a"
    file.write_bytes(b"abc")

    assert evict(tmp_path, asked(file, inode=inode)) == {"removed": ["a"], "kept": {}}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["content", "size", "time", "replaced", "link", "gone", "folder"])
def test_any_other_file_stays(tmp_path: Path, change: str) -> None:
    """Whatever became of it since."""
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    request = asked(file, inode=change != "content")
    if change == "content":
        file.write_bytes(b"abd")
    elif change == "size":
        file.write_bytes(b"abcd")
    elif change == "time":
        os.utime(file, ns=(1, 1))
    elif change == "gone":
        file.unlink()
    else:
        file.rename(tmp_path / "b")
        if change == "replaced":
            file.write_bytes(b"abc")
        elif change == "link":
            file.symlink_to("b")
        else:
            file.mkdir()
    before = sorted(p.name for p in tmp_path.iterdir())

    answer = evict(tmp_path, request)

    assert answer["removed"] == [] and list(answer["kept"]) == ["a"]
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_kill_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    """What had been put aside has its name again, unless a newer file has it."""
    (tmp_path / f"{agent_evict.ASIDE}a").write_bytes(b"abc")
    (tmp_path / f"{agent_evict.ASIDE}b").write_bytes(b"old")
    (tmp_path / "b").write_bytes(b"new")

    evict(tmp_path, ["c", 1, 1, 1, ""])

    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"abc", "b": b"new"}


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "", ".", "a//b", "a\0"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    """Before anything is removed."""
    with pytest.raises(Refusal):
        evict(tmp_path, [name, 1, 1, 1, ""])


class Host:
    """An agent that removes all it is asked for."""

    def __init__(self) -> None:
        self.host, self.asked = SimpleNamespace(name="h"), list[str]()

    def call(self, _verb: str, *, files: list[list[str]], **_: object) -> dict[str, Any]:
        self.asked += [name for name, *_ in files]
        return {"removed": [name for name, *_ in files], "kept": {}}


@pytest.mark.parametrize("harm", ["", "flip", "gone", "link"])
def test_only_what_reads_as_it_came_is_given_up_there(tmp_path: Path, harm: str) -> None:
    """The copy here is read again first, and it must be a file of its own."""
    sample = make(tmp_path / "to", "a", [1, 2, 3])
    file, host = file_of(sample, "{}"), Host()
    path = tmp_path / "to" / sample.file
    if harm == "flip":
        path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    elif harm:
        path.rename(tmp_path / "elsewhere")
    if harm == "link":
        path.symlink_to(tmp_path / "elsewhere")
    with open_folder(tmp_path / "to", DumpLayout()) as folder:
        evictor = Evictor(host, "/dumps", folder, ignore)  # type: ignore[arg-type]
        evictor.put([file])
        evictor.finish()

    assert host.asked == ([] if harm else [sample.file])
    assert (evictor.files, bool(evictor.kept)) == ((0, True) if harm else (1, False))
    assert (tmp_path / "to" / LEDGER).exists() == (not harm)


def test_a_link_that_is_lost_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the request was carried out is not known; it is the same one that is sent."""
    sample, host = make(tmp_path / "to", "a", [1, 2, 3]), Host()
    answer, losses = host.call, [UnreachableError("cut"), RemoteError("killed")]

    def call(verb: str, **params: Any) -> dict[str, Any]:
        if losses:
            raise losses.pop()
        return answer(verb, **params)

    monkeypatch.setattr(host, "call", call)
    monkeypatch.setattr(evict_, "time", SimpleNamespace(sleep=lambda _: None))
    with open_folder(tmp_path / "to", DumpLayout()) as folder:
        evictor = Evictor(host, "/dumps", folder, ignore)  # type: ignore[arg-type]
        evictor.put([file_of(sample, "{}")])
        evictor.finish()

    assert (evictor.files, losses) == (1, [])
