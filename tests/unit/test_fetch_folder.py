"""fetch.folder: the manifest never names what is not whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from hsops.core.dumps import MANIFEST, Sample
from hsops.core.errors import LockedError, UsageError
from hsops.fetch.folder import Folder, open_folder
from hsops.fetch.plan import part_name
from tests.dump_maker import make


def arrive(folder: Folder, tmp_path: Path, *ids: str) -> dict[str, str]:
    """Put whole part files into the folder; returns the host's manifest lines."""
    lines = {}
    for id_ in ids:
        sample = make(tmp_path / "host", id_, [1, 2, 3])
        (tmp_path / "host" / sample.file).rename(folder.part(sample))
        lines[id_] = json.dumps({**asdict(sample), "chunks": 2})
    return lines


def samples(tmp_path: Path, lines: dict[str, str]) -> list[Sample]:
    """The lines, parsed."""
    from hsops.core.dumps import parse_sample

    return [parse_sample(line) for line in lines.values()]


def test_commit_makes_files_and_lines(tmp_path: Path) -> None:
    """Part files become dumps; lines keep what the host wrote and add the stamp."""
    with open_folder(tmp_path / "to") as folder:
        lines = arrive(folder, tmp_path, "a", "b")
        folder.commit(samples(tmp_path, lines), lines)

        contents = folder.read()

    assert set(contents.held) == set(contents.files) == {"a", "b"}
    assert contents.held["a"].stamp == contents.files["a"]
    assert contents.parts == {}
    assert not contents.untidy
    assert json.loads((tmp_path / "to" / MANIFEST).read_text().splitlines()[0])["chunks"] == 2


@pytest.mark.parametrize("tail", ['{"id": "c", "sta', "not json\n", '{"id": "../x"}\n'])
def test_a_torn_or_foreign_line_is_untidy_and_tidied(tmp_path: Path, tail: str) -> None:
    """What a kill left of a line is dropped by the next run, the rest stays."""
    with open_folder(tmp_path / "to") as folder:
        lines = arrive(folder, tmp_path, "a", "b")
        folder.commit(samples(tmp_path, lines), lines)
        with (tmp_path / "to" / MANIFEST).open("a") as file:
            file.write(tail)

        before = folder.read()
        folder.forget(["b"])
        after = folder.read()

    assert before.untidy
    assert set(before.held) == {"a", "b"}
    assert set(after.held) == {"a"}
    assert not after.untidy


def test_links_and_folders_are_no_dumps(tmp_path: Path) -> None:
    """A name alone is not believed."""
    with open_folder(tmp_path) as folder:
        (tmp_path / "link.safetensors").symlink_to("/etc/passwd")
        (tmp_path / "folder.safetensors").mkdir()

        assert folder.read().files == {}


def test_a_part_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Somebody who can write to the folder cannot redirect a transfer."""
    sample = make(tmp_path / "host", "a", [1])
    with open_folder(tmp_path / "to") as folder:
        (tmp_path / "to" / part_name(sample)).symlink_to(tmp_path / "elsewhere")

        with pytest.raises(OSError, match="symbolic"):
            folder.open_part(sample, 0)

    assert not (tmp_path / "elsewhere").exists()


def test_two_fetches_never_share_a_folder(tmp_path: Path) -> None:
    """The second is told so at once."""
    with open_folder(tmp_path), pytest.raises(LockedError), open_folder(tmp_path):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A wrong --to is a usage error."""
    (tmp_path / "x").write_text("")

    with pytest.raises(UsageError), open_folder(tmp_path / "x"):
        pass
