"""extract.journal: where it lies, and what it does where it cannot be kept."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from hsops.core.dumps import token_bytes
from hsops.core.events import Event, Note, ignore
from hsops.core.prompts import Prompt
from hsops.extract.journal import Journal, journal_path, only_one

PROMPT = Prompt("a", 1, token_bytes([1, 2]))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_each_prompts_file_has_its_own_whatever_it_is_called_by(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files of one name in two folders are two; a relative path is the same file; a pipe has none."""
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p q.jsonl").touch()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path / "x")

    first, second = (journal_path(tmp_path / folder / "p q.jsonl") for folder in ("x", "y"))

    assert first and second and first.parent == state / "hsops/extract" and first.name.startswith("p_q.jsonl-")
    assert first != second and journal_path(Path("p q.jsonl")) == first
    assert journal_path(tmp_path / "x") not in (None, first)
    assert journal_path(tmp_path / "pipe") is journal_path(Path("-")) is None


def test_it_is_its_owners_alone(state: Path, tmp_path: Path) -> None:
    """Ids of prompts may tell something."""
    journal = Journal(state / "hsops/extract/j.sqlite", ignore)
    journal.attempted(PROMPT, "s", "")
    journal.close()

    assert (state / "hsops/extract").stat().st_mode & 0o777 == 0o700


def test_where_it_cannot_be_kept_it_says_so_once(tmp_path: Path) -> None:
    """A file where its folder should be; a table that somebody took away meanwhile."""
    told: list[Event] = []
    (tmp_path / "file").touch()
    nowhere = Journal(tmp_path / "file/j.sqlite", told.append)
    taken = Journal(tmp_path / "j.sqlite", told.append)
    with sqlite3.connect(tmp_path / "j.sqlite") as other:
        other.execute("drop table attempts")

    for journal in (nowhere, taken):
        for _ in range(3):
            journal.attempted(PROMPT, "s", "")
        assert journal.attempts(PROMPT) == ()
        journal.close()

    assert len([event for event in told if isinstance(event, Note) and "not written down" in event.message]) == 2


def test_two_keep_one_at_the_same_time(tmp_path: Path) -> None:
    """One file to two servers."""
    first, second = (Journal(tmp_path / "j.sqlite", ignore) for _ in range(2))

    for _ in range(20):
        first.attempted(PROMPT, "a", "no")
        second.attempted(PROMPT, "b", "no")

    assert len(first.attempts(PROMPT)) == len(second.attempts(PROMPT)) == 40


def test_one_of_a_later_hsops_is_left_where_it_can_be_found(tmp_path: Path) -> None:
    """Its rows may mean something else; it is neither written to nor lost."""
    with sqlite3.connect(tmp_path / "j.sqlite") as later:
        later.execute("create table kept (x)")
        later.execute("pragma user_version = 9")
    later.close()

    journal = Journal(tmp_path / "j.sqlite", ignore)
    journal.attempted(PROMPT, "a", "")

    assert len(journal.attempts(PROMPT)) == 1
    with sqlite3.connect(tmp_path / "j.unreadable") as aside:
        assert aside.execute("select count(*) from kept").fetchone() == (0,)


def test_a_lock_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    """The manifest is what counts."""
    (tmp_path / "file").touch()

    with only_one(tmp_path / "file/j.sqlite", "s", Path("p")):
        pass
