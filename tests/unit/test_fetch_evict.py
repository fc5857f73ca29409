"""agent.evict and fetch.evict: nothing is removed that is not safe elsewhere."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hsops.agent import evict as agent_evict
from hsops.agent.protocol import Refusal
from hsops.core.checksum import checksum_of
from hsops.core.deadline import Deadline
from hsops.core.errors import AgentError, RemoteError, UnreachableError
from hsops.core.events import ignore
from hsops.fetch import evict as evict_
from hsops.fetch.dumps import DumpLayout, file_of
from hsops.fetch.evict import Evictor
from hsops.fetch.folder import Folder, open_folder
from hsops.fetch.ledger import LEDGER
from hsops.fetch.plan import File
from hsops.fetch.prepare import prepare
from hsops.fetch.tree import OURS, TreeLayout
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
        self.missing = False

    def call(self, _verb: str, *, files: list[list[str]], **_: object) -> dict[str, Any]:
        self.asked += [name for name, *_ in files]
        if self.missing:
            return {"removed": [], "kept": {name: "missing" for name, *_ in files}}
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
    monkeypatch.setattr(evict_, "_PAUSES_S", (0.0,) * 4)
    with open_folder(tmp_path / "to", DumpLayout()) as folder:
        evictor = Evictor(host, "/dumps", folder, ignore)  # type: ignore[arg-type]
        evictor.put([file_of(sample, "{}")])
        evictor.finish()

    assert (evictor.files, losses) == (1, [])


@pytest.mark.parametrize("how", ["written", "mapped", "read"])
def test_what_a_process_writes_to_stays(tmp_path: Path, how: str) -> None:
    """It was opened after the list, and nothing is written yet; who reads loses nothing."""
    file = tmp_path / "a\n b"
    file.write_bytes(b"a" * 8192)
    request = asked(file)
    with file.open("rb" if how == "read" else "r+b") as handle:
        if how == "mapped":
            with mmap.mmap(handle.fileno(), 8192) as mapped:
                handle.close()
                answer = evict(tmp_path, request)
                mapped[0] = 98
        else:
            answer = evict(tmp_path, request)

    kept = {} if how == "read" else {file.name: "open"}
    assert answer == {"removed": [file.name] if how == "read" else [], "kept": kept}
    assert [p.name for p in tmp_path.iterdir()] == list(kept)


def test_nothing_is_removed_through_a_folder_that_became_a_link(tmp_path: Path) -> None:
    """The file is in another folder by now; also when the folder itself is named by a link."""
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/sub/x").write_bytes(b"x")
    (tmp_path / "in/good").write_bytes(b"x")
    (tmp_path / "link").symlink_to("in")
    request, good = ["sub/x", *asked(tmp_path / "in/sub/x")[1:]], asked(tmp_path / "in/good")
    (tmp_path / "in/sub").rename(tmp_path / "moved")
    (tmp_path / "moved" / f"{agent_evict.ASIDE}y").write_bytes(b"y")
    (tmp_path / "in/sub").symlink_to(tmp_path / "moved")

    assert evict(tmp_path / "link", request, good) == {"removed": ["good"], "kept": {"sub/x": "changed"}}
    assert sorted(p.name for p in (tmp_path / "moved").iterdir()) == [f"{agent_evict.ASIDE}y", "x"]


def test_where_there_are_no_hard_links_a_name_is_given_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor of another user's file."""

    def link(*_: object, **_more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / f"{agent_evict.ASIDE}a").write_bytes(b"abc")
    monkeypatch.setattr(os, "link", link)

    evict(tmp_path, ["c", 1, 1, 1, ""])

    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_all_of_it_is_durable_before_the_host_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content, names and ledger, also of a file that something else has put here."""
    synced, sync, host = list[str](), os.fsync, Host()

    def fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    def call(_verb: str, **_: object) -> dict[str, Any]:
        synced.append("asked")
        return {"removed": ["d/a"], "kept": {}}

    to = tmp_path / "new/to"
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(host, "call", call)
    with open_folder(to, TreeLayout()) as folder:
        assert {str(tmp_path), str(tmp_path / "new"), str(to)} <= set(synced)
        synced.clear()
        (to / "d").mkdir()
        (to / "d/a").write_bytes(b"abc")
        evictor = Evictor(host, "/x", folder, ignore)  # type: ignore[arg-type]
        evictor.put([tree_file("d/a", checksum_of(to / "d/a", "xxh3"))])
        evictor.finish()

    before = set(synced[: synced.index("asked")])
    assert {str(to / "d/a"), str(to / "d"), str(to), str(folder.ledger.path), str(folder.ledger.path.parent)} <= before


def tree_file(name: str, checksum: str, version: str = "v1") -> File:
    """A file of a tree, of three bytes."""
    line = json.dumps({"name": name, "bytes": 3, "version": version})
    return File(name, name, 3, version, f"{OURS}/{version}.part", checksum, line, inode=(1, 1))


def test_the_ledger_is_of_one_host(tmp_path: Path) -> None:
    """Another one with a folder of that name still has its files; what a kill cut begins no line."""
    sample, host = make(tmp_path, "a", [1, 2, 3]), Host()
    with open_folder(tmp_path, DumpLayout()) as folder:
        for name in ("h", "h", "other"):
            host.host.name = name
            evictor = Evictor(host, "/dumps", folder, ignore)  # type: ignore[arg-type]
            evictor.put([file_of(sample, "{}")])
            evictor.finish()
            with folder.ledger.path.open("a") as ledger:
                ledger.write('{"time":"to')
    lines = [line for line in folder.ledger.path.read_text().split("\n") if not line.startswith('{"time":"to')]

    assert host.asked == [sample.file] * 2
    assert [json.loads(line)["host"] for line in lines] == ["h", "h", "other", "other"]


def test_what_a_dead_client_had_removed_is_asked_for_once_more_only(tmp_path: Path) -> None:
    """Its ledger has no line of it: without one every later run would read the copy again."""
    sample, host = make(tmp_path, "a", [1, 2, 3]), Host()
    host.missing = True
    with open_folder(tmp_path, DumpLayout()) as folder:
        counts = []
        for _ in range(2):
            evictor = Evictor(host, "/dumps", folder, ignore)  # type: ignore[arg-type]
            evictor.put([file_of(sample, "{}")])
            evictor.finish()
            counts.append((evictor.files, evictor.kept))

    assert host.asked == [sample.file]
    assert counts == [(0, {}), (0, {})]


def test_a_request_has_no_more_than_the_host_can_read_in_time() -> None:
    """Of those with an inode it reads nothing; one alone may be as large as it is."""
    known, half = tree_file("a", ""), evict_.MOST_READ // 2
    read = replace(known, inode=None, bytes=half)

    def sizes(*files: File) -> list[int]:
        return [len(some) for some in evict_.requests(files)]

    assert sizes() == [] and sizes(*[replace(known, bytes=half)] * 5) == [5]
    assert sizes(*[read] * 5, known) == [2, 2, 2]
    assert sizes(replace(read, bytes=9 * half), known) == [1, 1]
    assert sizes(*[known] * (evict_.MOST + 1)) == [evict_.MOST, 1]


@pytest.mark.parametrize("answer", ["removed", "changed", "missing", "lost"])
def test_what_the_host_was_freed_of_is_not_replaced(
    tmp_path: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same process or a later one; a request without an answer may have been carried out."""
    monkeypatch.setattr(evict_, "_PAUSES_S", (0.0,) * 4)
    host = Host()

    def call(_verb: str, **_: object) -> dict[str, Any]:
        if answer == "lost":
            raise AgentError("no", code="bad-request")
        return {"removed": ["a"], "kept": {}} if answer == "removed" else {"removed": [], "kept": {"a": answer}}

    host.call = call  # type: ignore[method-assign]
    newer = tree_file("a", "", "v2")
    with open_folder(tmp_path, TreeLayout()) as folder:
        (tmp_path / "a").write_bytes(b"abc")
        first = tree_file("a", checksum_of(tmp_path / "a", "xxh3"))
        folder.adopt([first])
        evictor = Evictor(host, "/x", folder, ignore)  # type: ignore[arg-type]
        evictor.put([first])
        with contextlib.suppress(AgentError):
            evictor.finish()

        later = Folder(tmp_path, TreeLayout())
        only = (newer,) if answer != "changed" else ()
        for one, contents in ((folder, folder.look({"a": newer})), (later, later.read())):
            assert prepare(one, {"a": newer}, contents, emit=ignore).only_here == only
            if answer == "changed":
                break  # the plan has forgotten its line
            assert one.is_only_copy(replace(newer, checksum="xxh3:1")) and not one.is_only_copy(first)


def test_a_fetch_that_ends_early_does_not_wait_for_a_silent_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is queued is dropped, and nothing is asked for a second time."""
    sample, other = make(tmp_path, "a", [1, 2, 3]), make(tmp_path, "b", [1, 2, 3])
    host, asked_, silent = Host(), threading.Event(), threading.Event()
    patience = list[Deadline]()

    def call(_verb: str, *, deadline: Deadline, **_: object) -> dict[str, Any]:
        patience.append(deadline)
        asked_.set()
        assert silent.wait(60)
        raise UnreachableError("silent")

    monkeypatch.setattr(host, "call", call)
    monkeypatch.setattr(evict_, "_LAST_S", 0.0)
    with open_folder(tmp_path, DumpLayout()) as folder:
        evictor = Evictor(host, "/dumps", folder, ignore)  # type: ignore[arg-type]
        evictor.put([file_of(sample, "{}")])
        assert asked_.wait(60)
        evictor.put([file_of(other, "{}")])
        evictor.drop()
        silent.set()
        evictor.finish()

    assert (len(patience), evictor.files) == (1, 0)
    assert "b.safetensors" not in folder.ledger.path.read_text()


def test_a_request_that_is_repeated_is_waited_for_a_shorter_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has read the files by then."""
    sample, host, patience = make(tmp_path, "a", [1, 2, 3]), Host(), list[float]()

    def call(_verb: str, *, deadline: Deadline, **_: object) -> dict[str, Any]:
        patience.append(deadline.idle)
        raise UnreachableError("silent")

    monkeypatch.setattr(host, "call", call)
    monkeypatch.setattr(evict_, "_PAUSES_S", (0.0,) * 4)
    with open_folder(tmp_path, DumpLayout()) as folder:
        evictor = Evictor(host, "/dumps", folder, ignore)  # type: ignore[arg-type]
        evictor.put([file_of(sample, "{}")])
        with pytest.raises(UnreachableError):
            evictor.finish()

    assert len(patience) == 5 and max(patience[1:]) < patience[0]
