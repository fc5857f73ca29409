"""Paths that stand in each other's way: refused before anything is changed, by the agent, whatever a client sends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import patch
from hsops.agent.patch_site import LARGEST, Site
from hsops.agent.patch_store import Store
from hsops.agent.protocol import Refusal
from tests.faults.ground import edit, tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a few files and links."""
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "real/x").write_bytes(b"x\n")
    (root / "thing").write_bytes(b"a file\n")
    (root / "link").symlink_to("real")
    (root / "name").symlink_to("thing")
    return root


def params(root: Path, *edits: dict[str, Any]) -> dict[str, Any]:
    """Of an apply."""
    told = {"state_dir": str(root.parent / "state"), "patch": "p", "place": str(root), "identity": "1", "options": {}}
    return {**told, "edits": list(edits)}


@pytest.mark.parametrize(
    "edits,code,said",
    [
        (lambda r: [edit(r, "thing", None), edit(r, "thing/x", b"1")], "not-a-file", "thing is a file, and thing/x"),
        (lambda r: [edit(r, "thing/deep/x", b"1")], "not-a-file", "thing is a file, and thing/deep/x"),
        (lambda r: [edit(r, "new", b"1"), edit(r, "new/x", b"1")], "not-a-file", "new is a file, and new/x"),
        (lambda r: [edit(r, "new/x", b"1"), edit(r, "new", b"1")], "not-a-file", "new is a file, and new/x"),
        (lambda r: [edit(r, "real/x", None), {**edit(r, "n", b"1"), "path": "real"}], "not-a-file", "real"),
        (lambda r: [edit(r, "real/x", b"1"), edit(r, "link/x", b"2")], "same-file", "real/x and link/x are one file"),
        (lambda r: [edit(r, "real/y", b"1"), edit(r, "link/y", b"1")], "same-file", "real/y and link/y are one file"),
        (lambda r: [edit(r, "name", b"1"), edit(r, "thing", b"2")], "same-file", "name and thing are one file"),
        (lambda r: [edit(r, "name", None)], "not-a-file", "name is a link"),
        (lambda r: [edit(r, "../x", b"1")], "escapes-root", "not a plain path"),
        (lambda r: [{**edit(r, "n", b"1"), "path": "/x"}], "escapes-root", "not a plain path"),
        (lambda r: [{**edit(r, "n", b"1"), "path": "x" * 256}], "name-too-long", "256 bytes"),
        (lambda r: [{**edit(r, "n", b"1"), "path": "new/" + "\u00e4" * 128}], "name-too-long", "260 bytes"),
        (lambda r: [{**edit(r, "n", b"1"), "path": "deep/" * 900 + "x"}], "name-too-long", "4501 bytes"),
    ],
)  # fmt: skip
def test_what_cannot_lie_there_together_is_refused(
    edits: Callable[[Path], list[dict[str, Any]]], code: str, said: str, root: Path
) -> None:
    """By a check already; nothing is changed, nothing is remembered, and the next command works."""
    before = tree(root)

    asked = params(root, *edits(root))
    for verb, more in ((patch.check, {"changes": []}), (patch.apply, {})):
        with pytest.raises(Refusal, match=said) as caught:
            verb({**asked, **more})
        assert (caught.value.code, tree(root)) == (code, before)
    assert not list((root.parent / "state/patches").rglob("journal.json"))
    assert patch.inspect({**params(root), "patches": ["p"]})["patches"]["p"]["state"] == "absent"


def test_a_folder_that_became_a_file_meanwhile_does_not_keep_a_journal_for_ever(root: Path) -> None:
    """Killed before its first rename, then somebody else put a file there: the rest is undone all the same."""
    site, state = Site(str(root)), str(root.parent / "state")
    store = Store(state, "p", site)
    digest = store.keep(b"1")
    change = {"path": "real/new", "before": None, "after": {"sha256": digest, "mode": 0o644}}
    os.makedirs(store.folder, exist_ok=True)
    journal = {
        "site": site.root,
        "after": "s",
        "changes": [change],
        "made": [],
        "removed": [],
        "change": "c",
        "audit": {},
    }
    store._save("journal.json", journal)
    (root / "real/x").unlink()
    (root / "real").rmdir()
    (root / "real").write_bytes(b"somebody's\n")

    patch.inspect({**params(root), "patches": ["p"]})

    assert not list((root.parent / "state/patches").rglob("journal.json"))
    assert (root / "real").read_bytes() == b"somebody's\n"


def test_files_too_large_to_travel_are_refused_before_they_are_read(root: Path) -> None:
    """A model's weights, say: a sparse file costs the test nothing."""
    with open(root / "huge", "wb") as file:
        file.truncate(LARGEST)
    asked = {**params(root), "patches": ["p"], "known": []}

    with pytest.raises(Refusal, match="huge has 128 MiB") as caught:
        patch.inspect({**asked, "read": ["thing", "huge"]})

    assert caught.value.code == "file-too-large" and "at most 128 MiB together" in str(caught.value)


def revert_params(root: Path, name: str = "p") -> dict[str, Any]:
    """Of a forced revert."""
    return {"state_dir": str(root.parent / "state"), "patch": name, "place": str(root), "force": True}


@pytest.mark.parametrize(
    "first,second",
    [
        ("real/x", "link/x"),
        ("link/x", "real/x"),
        ("real/new/y", "link/new/y"),
        ("link/y", "link2/y"),
        ("thing", "name"),
        ("name", "thing"),
    ],
)
def test_a_file_has_one_patch_by_whatever_link_it_is_named(first: str, second: str, root: Path) -> None:
    """Two could not be taken out one by one: the first one's original would be lost."""
    (root / "link2").symlink_to("link")
    before = tree(root)
    patch.apply(params(root, edit(root, first, b"by p\n")))
    applied = tree(root)
    other = {**params(root, edit(root, second, b"by q\n")), "patch": "q"}

    with pytest.raises(Refusal, match=f"'p' already changes {second}") as caught:
        patch.apply(other)

    assert (caught.value.code, tree(root)) == ("conflict", applied)
    told = patch.inspect({**params(root), "patches": ["q"], "read": [second]})
    assert told["owners"][second] == "p", "the plan is to tell it already"
    patch.revert(revert_params(root))
    assert tree(root) == before
    patch.apply({**params(root, edit(root, second, b"by q\n")), "patch": "q"})


def test_a_newer_patch_that_names_its_file_by_a_link_is_refused(root: Path) -> None:
    """It would take what the older made of the file for the original."""
    before = tree(root)
    patch.apply(params(root, edit(root, "real/x", b"1\n")))

    with pytest.raises(Refusal, match="real/x and link/x are one file") as caught:
        patch.apply(params(root, edit(root, "link/x", b"2\n")))

    assert caught.value.code == "same-file"
    patch.apply(params(root, edit(root, "real/x", b"2\n")))
    patch.revert(revert_params(root))
    assert tree(root) == before


@pytest.mark.parametrize("gone", ["real", "real/deep/er", "real/deep/er/__pycache__"])
def test_a_revert_makes_the_folders_anew_that_are_gone(gone: str, root: Path) -> None:
    """With somebody's ``rm -r`` the patch was there for ever: no command could take it out."""
    cached = root / "real/deep/er/__pycache__/m.cpython-311.pyc"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(b"byte code")
    (root / "real/deep/er/m.py").write_bytes(b"original\n")
    before = {path: told for path, told in tree(root).items() if path.startswith("real/deep")}
    patch.apply(params(root, edit(root, "real/deep/er/m.py", b"patched\n"), edit(root, "mine/new", b"1\n")))
    shutil.rmtree(root / gone, ignore_errors=gone.endswith("__pycache__"))  # which an apply may have removed itself

    patch.revert(revert_params(root))

    assert {path: told for path, told in tree(root).items() if path.startswith("real/deep")} == before
    assert not (root / "mine").exists()
    assert patch.inspect({**params(root), "patches": ["p"]})["patches"]["p"]["state"] == "absent"


@pytest.mark.parametrize("path", ["real/x", "real/deep/er/x"])
def test_a_file_in_the_place_of_such_a_folder_is_somebodys(path: str, root: Path) -> None:
    """The revert is refused and says where; the file keeps its mode, the patch its record."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(b"original\n")
    patch.apply(params(root, edit(root, path, b"patched\n")))
    shutil.rmtree(root / "real")
    (root / "real").write_bytes(b"somebody's\n")
    (root / "real").chmod(0o640)
    before = tree(root)

    for verb, more in ((patch.check, {"edits": [], "changes": [path]}), (patch.revert, {})):
        with pytest.raises(Refusal, match=f"real is a file, and {path} would need a folder there") as caught:
            verb({**revert_params(root), **more})
        assert (caught.value.code, tree(root)) == ("not-a-file", before)
    (root / "real").unlink()
    patch.revert(revert_params(root))
    assert (root / path).read_bytes() == b"original\n"


def test_a_file_in_the_place_of_the_patchs_own_folder_is_no_reason_to_keep_it(root: Path) -> None:
    """Such a folder is gone as far as the patch goes: the revert ends, with nothing left to do for the next command."""
    before = tree(root)
    patch.apply(params(root, edit(root, "mine/deep/new", b"1\n")))
    shutil.rmtree(root / "mine")
    (root / "mine").write_bytes(b"somebody's\n")

    patch.revert(revert_params(root))

    assert not list((root.parent / "state/patches").rglob("*.json"))
    (root / "mine").unlink()
    assert tree(root) == before
