"""Paths that stand in each other's way: refused before anything is changed, by the agent, whatever a client sends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import patch
from hsops.agent.patch_site import Site
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
    ],
)  # fmt: skip
def test_what_cannot_lie_there_together_is_refused(
    edits: Callable[[Path], list[dict[str, Any]]], code: str, said: str, root: Path
) -> None:
    """Nothing is changed, nothing is remembered, and the next command works."""
    before = tree(root)

    with pytest.raises(Refusal, match=said) as caught:
        patch.apply(params(root, *edits(root)))

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
        file.truncate(patch._LARGEST)
    asked = {**params(root), "patches": ["p"], "known": []}

    with pytest.raises(Refusal, match="huge has 128 MiB") as caught:
        patch.inspect({**asked, "read": ["thing", "huge"]})

    assert caught.value.code == "file-too-large" and "at most 128 MiB together" in str(caught.value)
