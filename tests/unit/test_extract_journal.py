"""extract.journal: where it lies, and what it does where it cannot be kept."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from hsops.core.dumps import token_bytes
from hsops.core.errors import LockedError
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


def test_a_split_of_a_dataset_has_one(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``FOLDER/data/train`` is neither a file nor a folder. A pipe has none, whatever lies beside it."""
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00001.parquet", "pipe.parquet", "-.parquet", "-"):
        (tmp_path / "data" / name).touch()
    os.mkfifo(tmp_path / "data/pipe")
    monkeypatch.chdir(tmp_path / "data")

    found = journal_path(tmp_path / "data/train")

    assert found and found.parent == state / "hsops/extract" and found.name.startswith("train-")
    assert found != journal_path(tmp_path / "data")
    assert [journal_path(Path(name)) for name in ("test", "pipe", "-")] == [None] * 3


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


def test_attempts_come_in_the_order_of_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the clock was set back between them."""
    journal, clock = Journal(tmp_path / "j.sqlite", ignore), iter((9.0, 5.0, 7.0))
    monkeypatch.setattr("hsops.extract.journal.time.time", lambda: next(clock))

    for reason in ("one", "two", "three"):
        journal.attempted(PROMPT, "a", reason)

    assert [(tried.reason, tried.time) for tried in journal.attempts(PROMPT)] == [("one", 9), ("two", 5), ("three", 7)]


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


def test_on_a_full_disk_the_lock_holds_without_a_pid(tmp_path: Path) -> None:
    """A file system without room for a byte, as the kernel's limit of a file's size makes one."""
    code = (
        "import resource, sys; from pathlib import Path; from hsops.extract.journal import only_one\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "with only_one(Path(sys.argv[1]), 's', Path('p')):\n"
        "    print('held', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "j.sqlite")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout and first.stdout.readline() == "held\n"
        with (
            pytest.raises(LockedError, match=r"^process \? extracts p to s already"),
            only_one(tmp_path / "j.sqlite", "s", Path("p")),
        ):
            pass
        first.communicate("", timeout=60)
    assert first.returncode == 0
