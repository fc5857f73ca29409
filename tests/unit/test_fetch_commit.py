"""fetch.commit: what is not all there, or would replace an only copy, is not put in place."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hsops.core.checksum import checksum_of
from hsops.fetch.commit import Committer
from hsops.fetch.folder import Folder, open_folder
from hsops.fetch.pace import Streams
from hsops.fetch.pieces import Pieces
from hsops.fetch.plan import File, Kept, Part, Transfer
from hsops.fetch.pull import Wish, _Pull
from hsops.fetch.tree import OURS, TreeLayout
from hsops.fetch.trouble import Trouble

FILE = File("a", "a", 10, "v2", f"{OURS}/v2.part", "", json.dumps({"name": "a", "bytes": 10, "version": "v2"}))


def commit(folder: Folder, *files: File) -> list[tuple[File, Trouble]]:
    """Returns what was refused."""
    refused = list[tuple[File, Trouble]]()
    committer = Committer(folder, "xxh3", pytest.fail, lambda f, t: refused.append((f, t)), lambda _: None)
    committer.start()
    for file in files or (FILE,):
        committer.put([(file, False)])
    committer.finish()
    committer.check()
    return refused


@pytest.mark.parametrize("kept", [((0, 4), (6, 10)), ((0, 4),), (), ((0, 4), (4, 6), (5, 10))])
def test_only_a_file_of_which_every_piece_came(tmp_path: Path, kept: tuple[tuple[int, int], ...]) -> None:
    """The size alone says nothing: the last piece may have come first."""
    with open_folder(tmp_path, TreeLayout()) as folder:
        folder.part(FILE).write_bytes(b"0123456789")
        for start, end in kept:
            folder.keep(FILE, Kept(start, end, "x"))
        if not kept:
            folder.open_part(FILE, None)

        refused = commit(folder)

    whole = len(kept) == 3
    assert [t.code for _, t in refused] == ([] if whole else ["checksum"])
    assert (tmp_path / "a").exists() == whole


def test_the_only_copy_is_kept_to_the_last_moment(tmp_path: Path) -> None:
    """The host was freed of it after the plan."""
    with open_folder(tmp_path, TreeLayout()) as folder:
        (tmp_path / "a").write_bytes(b"old")
        line = json.dumps({"name": "a", "bytes": 3, "version": "v1"})
        old = File("a", "a", 3, "v1", "", checksum_of(tmp_path / "a", "xxh3"), line)
        folder.adopt([old])
        folder.part(FILE).write_bytes(b"0123456789")
        folder.keep(FILE, Kept(0, 10, "x"))
        folder.ledger.note("copied", [old])

        ((_, trouble),) = commit(folder)

    assert trouble.code == "only-copy" and "rename" in trouble.message
    assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("way", ["folder", "file", "link"])
def test_a_place_that_is_taken_is_one_files_trouble(tmp_path: Path, way: str) -> None:
    """The others of the commit come; what came of it is not sent again."""
    bad = replace(FILE, name="x/a", id="x/a", part=f"{OURS}/bad.part")
    to = tmp_path / "to"
    with open_folder(to, TreeLayout()) as folder:
        if way == "folder":
            (to / "x/a").mkdir(parents=True)
        elif way == "file":
            (to / "x").write_text("mine")
        else:
            (to / "x").symlink_to(tmp_path)
        for file in (bad, FILE):
            folder.part(file).write_bytes(b"0123456789")
            folder.keep(file, Kept(0, 10, "x"))

        ((_, trouble),) = commit(folder, bad, FILE)
        assert set(folder.read().held) == {"a"} and bad.part in folder.read().parts
        assert folder.look({"x/a": bad}).files == {}

    assert (trouble.id, trouble.code) == ("x/a", "local") and str(to / "x") in trouble.message
    assert (to / "a").read_bytes() == b"0123456789"


def test_a_pull_is_not_over_before_its_last_file_is_with_the_committer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for it ends the committer, and what is put then is never committed."""
    pieces, over = Pieces([Transfer(FILE, Part(0), "new")]), list[bool]()
    ways: Any = SimpleNamespace(far=False)

    def put(_: Committer, files: Sequence[tuple[File, bool]]) -> None:
        over.extend(pieces.over for _ in files)

    monkeypatch.setattr(Committer, "put", put)
    with open_folder(tmp_path, TreeLayout()) as folder:
        work = _Pull(ways, "h", folder, pieces, wish=Wish(Streams(1, 1)), durable=lambda _: None)
        work._landed([(piece, FILE) for piece in pieces.take(1)])

    assert over == [False] and pieces.over


@pytest.mark.parametrize("before", [((0, 4),), ((4, 10),), ((0, 4), (4, 10))])
def test_what_was_summed_up_of_a_dropped_part_file_is_forgotten(
    tmp_path: Path, before: tuple[tuple[int, int], ...]
) -> None:
    """It comes again, and is proved by its new bytes alone, of which none is read before it is there."""
    other = replace(FILE, name="b", id="b", part=f"{OURS}/b.part")
    with open_folder(tmp_path, TreeLayout()) as folder:
        part, refused, so_far = folder.part(FILE), list[Trouble](), threading.Event()
        committer = Committer(folder, "xxh3", pytest.fail, lambda _, t: refused.append(t), lambda _: so_far.set())
        committer.start()
        part.write_bytes(b"xxxxxxxxxx")
        folder.part(other).write_bytes(b"0123456789")
        for start, end in before:
            committer.grow(FILE, start, end)
        committer.forget(FILE.part)
        committer.put([(replace(other, checksum=checksum_of(folder.part(other), "xxh3")), True)])
        assert so_far.wait(30)  # all before it is done

        part.write_bytes(b"")
        for start, end in ((0, 4), (4, 10)):
            with part.open("r+b") as file:  # as a stream does: nothing that is there already is touched
                file.seek(start)
                file.write(b"0123456789"[start:end])
            folder.keep(FILE, Kept(start, end, "x"))
            committer.grow(FILE, start, end)
        committer.put([(FILE, False)])
        committer.finish()
        committer.check()
        held, _ = folder.manifest.read()

    assert refused == [] and (tmp_path / "a").read_bytes() == b"0123456789"
    assert held["a"].file.checksum == checksum_of(tmp_path / "a", "xxh3")
