"""The watch over a root on a bad day: what was there comes back, whatever cannot be put aside."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import patch_guard
from hsops.agent.patch_guard import Guard


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With two files."""
    (tmp_path / "root/pkg/deep").mkdir(parents=True)
    (tmp_path / "root/pkg/z.py").write_text("z")
    (tmp_path / "root/pkg/deep/y.py").write_text("y")
    return tmp_path / "root"


@pytest.fixture
def guard(root: Path, tmp_path: Path) -> Guard:
    """Over that root."""
    (tmp_path / "state/scratch/p/1").mkdir(parents=True)
    found = Guard(str(tmp_path / "state/scratch/p/1"))
    found.watch(str(root), ["pkg"])
    return found


def texts(root: Path) -> dict[str, str]:
    """Every file below it; the time in the name of what was put aside left out."""
    found = {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}
    return {name.partition(".hsops-aside-")[0] + "~" * (".hsops-aside-" in name): text for name, text in found.items()}


def full(*_: Any, **__: Any) -> None:
    """A disk that is."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_state_dir_does_not_keep_the_files_from_coming_back(
    root: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is new stays where it is and is named; what was changed keeps its bytes beside the file."""
    (root / "pkg/a.py").write_text("new")
    (root / "pkg/z.py").write_text("changed")
    (root / "pkg/deep/y.py").unlink()
    monkeypatch.setattr(shutil, "copy2", full)

    restored, lost = guard.restore()

    assert restored == ["pkg/deep/y.py", "pkg/z.py"] and lost[0] == "pkg/a.py" and len(lost) == 2
    assert (root / lost[1]).read_text() == "changed"
    assert texts(root) == {"pkg/a.py": "new", "pkg/deep/y.py": "y", "pkg/z.py": "z", "pkg/z.py~": "changed"}


def test_what_vanishes_meanwhile_ends_nothing(root: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else cleans up too."""
    (root / "pkg/a.py").write_text("new")
    (root / "pkg/z.py").write_text("changed")
    copy = shutil.copy2

    def late(source: str, target: str, **more: Any) -> None:
        os.unlink(source)
        copy(source, target, **more)

    monkeypatch.setattr(shutil, "copy2", late)

    assert guard.restore() == (["pkg/a.py", "pkg/z.py"], [])
    assert texts(root) == {"pkg/deep/y.py": "y", "pkg/z.py": "z"}


def test_a_file_that_cannot_come_back_stops_no_other_and_is_tried_again(
    root: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy stays until then."""
    (root / "pkg/deep/y.py").write_text("changed")
    (root / "pkg/z.py").write_text("changed")
    stage = patch_guard.Site.stage

    def on_a_full_disk(site: patch_guard.Site, path: str, *more: Any) -> None:
        return full() if "deep" in path else stage(site, path, *more)

    monkeypatch.setattr(patch_guard.Site, "stage", on_a_full_disk)

    with pytest.raises(OSError, match="No space"):
        guard.restore()
    assert (root / "pkg/z.py").read_text() == "z"
    monkeypatch.undo()
    guard.restore()

    assert texts(root)["pkg/deep/y.py"] == "y"


def test_a_folder_where_a_file_was_and_a_file_where_a_folder_was(root: Path, guard: Guard) -> None:
    """Nothing of either is lost."""
    (root / "pkg/z.py").unlink()
    (root / "pkg/z.py").mkdir()
    (root / "pkg/z.py/inner").write_text("mine")
    shutil.rmtree(root / "pkg/deep")
    (root / "pkg/deep").write_text("a file")

    restored, lost = guard.restore()

    assert (root / "pkg/z.py").read_text() == "z" and (root / "pkg/deep/y.py").read_text() == "y"
    assert "pkg/z.py" in restored and (root / lost[0] / "inner").read_text() == "mine"
    assert (Path(guard.aside) / "pkg/deep").read_text() == "a file"


def test_a_file_that_vanishes_during_the_look_takes_no_other_with_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of its folder would count as new afterwards, and be taken away."""

    class Gone:
        name = "gone"

        def is_dir(self, **_: Any) -> bool:
            return False

        def stat(self, **_: Any) -> os.stat_result:
            raise FileNotFoundError

    class Entries(list[Any]):
        def __enter__(self) -> Entries:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: Entries([Gone(), *scan(path)]))

    assert set(patch_guard._stats(str(root))) == {"pkg/z.py", "pkg/deep/y.py"}
