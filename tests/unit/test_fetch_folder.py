"""fetch.folder: the manifest never names what is not whole."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hsops.core.dumps import MANIFEST
from hsops.core.errors import LockedError, UsageError
from hsops.fetch.dumps import DumpLayout, file_of
from hsops.fetch.folder import PIECES, Folder, open_folder
from hsops.fetch.plan import File, Kept, Part
from tests.dump_maker import make

LAYOUT = DumpLayout()


def arrive(folder: Folder, tmp_path: Path, *ids: str) -> list[File]:
    """Put whole part files into the folder; returns the files."""
    files = []
    for id_ in ids:
        sample = make(tmp_path / "host", id_, [1, 2, 3])
        files.append(file_of(sample, json.dumps({**asdict(sample), "chunks": 2})))
        (tmp_path / "host" / sample.file).rename(folder.part(files[-1]))
    return files


def test_commit_makes_files_and_lines(tmp_path: Path) -> None:
    """Part files become dumps; lines keep what the host wrote and add the stamp."""
    with open_folder(tmp_path / "to", LAYOUT) as folder:
        files = arrive(folder, tmp_path, "a", "b")
        folder.commit(files)

        contents = folder.read()

    assert set(contents.held) == set(contents.files) == {"a.safetensors", "b.safetensors"}
    assert contents.held["a.safetensors"].stamp == contents.files["a.safetensors"]
    assert contents.parts == {}
    assert not contents.untidy
    assert json.loads((tmp_path / "to" / MANIFEST).read_text().splitlines()[0])["chunks"] == 2


@pytest.mark.parametrize("tail", ['{"id": "c", "sta', "not json\n", '{"id": "../x"}\n'])
def test_a_torn_or_foreign_line_is_untidy_and_tidied(tmp_path: Path, tail: str) -> None:
    """What a kill left of a line is dropped by the next run, the rest stays."""
    with open_folder(tmp_path / "to", LAYOUT) as folder:
        files = arrive(folder, tmp_path, "a", "b")
        folder.commit(files)
        with (tmp_path / "to" / MANIFEST).open("a") as file:
            file.write(tail)

        before = folder.read()
        folder.manifest.forget(["b.safetensors"])
        after = folder.read()

    assert before.untidy
    assert set(before.held) == {"a.safetensors", "b.safetensors"}
    assert set(after.held) == {"a.safetensors"}
    assert not after.untidy


def test_links_and_folders_are_no_dumps(tmp_path: Path) -> None:
    """A name alone is not believed."""
    with open_folder(tmp_path, LAYOUT) as folder:
        (tmp_path / "link.safetensors").symlink_to("/etc/passwd")
        (tmp_path / "folder.safetensors").mkdir()

        assert folder.read().files == {}


def test_a_part_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Somebody who can write to the folder cannot redirect a transfer."""
    file = file_of(make(tmp_path / "host", "a", [1]), "{}")
    with open_folder(tmp_path / "to", LAYOUT) as folder:
        (tmp_path / "to" / file.part).symlink_to(tmp_path / "elsewhere")

        with pytest.raises(OSError, match="symbolic"):
            folder.open_part(file, 0)

    assert not (tmp_path / "elsewhere").exists()


def test_two_fetches_never_share_a_folder(tmp_path: Path) -> None:
    """The second is told so at once."""
    with open_folder(tmp_path, LAYOUT), pytest.raises(LockedError), open_folder(tmp_path, LAYOUT):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A wrong --to is a usage error."""
    (tmp_path / "x").write_text("")

    with pytest.raises(UsageError), open_folder(tmp_path / "x", LAYOUT):
        pass


def test_what_came_in_pieces_is_found_again(tmp_path: Path) -> None:
    """Before its first piece is here its part file is no beginning of it, whatever its size; a torn line counts not."""
    file = file_of(make(tmp_path / "host", "a", [1]), "{}")
    with open_folder(tmp_path / "to", LAYOUT) as folder:
        handle = folder.open_part(file, None)
        os.pwrite(handle, b"x" * 10, 90)
        os.close(handle)
        before = folder.read().parts
        folder.keep(file, Kept(90, 100, "xxh3:0123456789abcdef"))
        with (tmp_path / "to" / f"{file.part}{PIECES}").open("a") as torn:
            torn.write("0 90 xxh")

        after = folder.read().parts
        folder.drop(file.part)

        assert before == {file.part: Part(100, ())}
        assert after == {file.part: Part(100, (Kept(90, 100, "xxh3:0123456789abcdef"),))}
        assert folder.read().parts == {}


@pytest.mark.parametrize("count", [1, 20])
def test_many_files_are_made_durable_at_once(tmp_path: Path, count: int) -> None:
    """One sync of the file system, or one of each."""
    with open_folder(tmp_path / "to", LAYOUT) as folder:
        folder.commit(arrive(folder, tmp_path, *[f"s{i}" for i in range(count)]))

        assert len(folder.read().held) == len(folder.read().files) == count


def test_a_line_is_kept_whatever_the_host_put_in(tmp_path: Path) -> None:
    """Half a character, a stamp of its own: the line stays one, and the stamp is ours."""
    with open_folder(tmp_path / "to", LAYOUT) as folder:
        (file,) = arrive(folder, tmp_path, "a")
        line = json.dumps({**json.loads(file.line), "odd": "é", "local": {"size": 1}}, ensure_ascii=False)
        folder.commit([replace(file, line=line.replace("é", "é\ud800") + "  ")])

        contents = folder.read()

    assert contents.held[file.name].stamp == contents.files[file.name]
    assert not contents.untidy


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.ENOENT])
def test_another_users_file_is_one_files_trouble(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the folder itself cannot be written: then no other file could come either."""
    with open_folder(tmp_path / "to", LAYOUT) as folder:
        assert folder.is_of_one(OSError(code, "no"))
        assert not folder.is_of_one(OSError(errno.ENOSPC, "full"))

        monkeypatch.setattr(os, "access", lambda *_: False)
        assert not folder.is_of_one(OSError(code, "no"))


@pytest.mark.parametrize("name", ["part", "pieces"])
def test_a_look_and_a_drop_take_nothing_for_ours(name: str, tmp_path: Path) -> None:
    """A folder where a part file or its list would be: its size is no beginning, and it is not removed."""
    file = file_of(make(tmp_path / "host", "a", [1]), "{}")
    with open_folder(tmp_path / "to", LAYOUT) as folder:
        (tmp_path / "to" / (file.part + (PIECES if name == "pieces" else ""))).mkdir()
        if name == "pieces":
            folder.part(file).write_bytes(b"12")

        assert folder.look({file.name: file}).parts == ({file.part: Part(2)} if name == "pieces" else {})
        folder.drop(file.part)

    assert not folder.part(file).is_file()
    assert len(list((tmp_path / "to").iterdir())) == 1
