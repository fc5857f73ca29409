"""A log that is emptied, moved aside or begun anew while it is read: no byte is lost or told twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import logs, protocol
from hsops.remote.log import Place


class Reader:
    """The agent's tail and the client's place, with everything that was told."""

    def __init__(self, path: Path, told: list[dict[str, Any]]) -> None:
        self.path, self._told, self.place = path, told, Place()
        self.seen: list[bytes | str] = []
        self.attach()

    def attach(self) -> None:
        """Anew, from where the client is."""
        self._tail = logs.Tail(str(self.path), self.place.param())

    def pour(self) -> list[bytes | str]:
        """What is new: bytes, and the word for a cut."""
        while self._tail.pour():
            pass
        new: list[bytes | str] = []
        for event in self._told:
            new.append(self.place.take(event) if event["kind"] == "log" else self.place.cut(event).why)
        self._told.clear()
        return new


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with two lines."""
    path = tmp_path / "server.log"
    path.write_bytes(b"one\ntwo\n")
    return path


@pytest.fixture
def reader(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """Has read them."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(protocol, "emit", lambda kind, **fields: told.append({"kind": kind, **fields}))
    reader = Reader(log, told)
    assert reader.pour() == [b"one\ntwo\n"]
    return reader


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.fixture(params=["watched", "away"])
def again(request: pytest.FixtureRequest, reader: Reader) -> Reader:
    """The same reader, or one that comes back after its link was lost."""
    if request.param == "away":
        reader.attach()
    return reader


def test_growth_is_told_once(log: Path, again: Reader) -> None:
    """Bytes that are no UTF-8 too."""
    append(log, b"\xff\xfethree")

    assert again.pour() == [b"\xff\xfethree"] and again.pour() == []


def test_an_emptied_log_is_said_and_read_from_its_beginning(log: Path, again: Reader) -> None:
    """As logrotate's copytruncate leaves it."""
    os.truncate(log, 0)
    append(log, b"new\n")

    assert again.pour() == ["truncated", b"new\n"]
    append(log, b"more\n")
    assert again.pour() == [b"more\n"]


def test_an_emptied_log_that_has_outgrown_the_place_is_told_by_its_bytes(log: Path, again: Reader) -> None:
    """Its size alone would say that nothing happened."""
    os.truncate(log, 0)
    append(log, b"1\n2\n3\n4\n5\n6\n")

    assert again.pour() == ["truncated", b"1\n2\n3\n4\n5\n6\n"]


def test_a_log_moved_aside_is_read_to_its_end_first(log: Path, again: Reader) -> None:
    """And not left before there is something in the new one: the server still writes to the old one."""
    log.rename(log.with_name("server.log.1"))
    append(log.with_name("server.log.1"), b"three\n")
    assert again.pour() == [b"three\n"]
    append(log.with_name("server.log.1"), b"four\n")
    log.touch()
    assert again.pour() == [b"four\n"]

    append(log, b"new\n")

    assert again.pour() == ["rotated", b"new\n"]


def test_each_attempt_of_a_restarted_server_is_read(log: Path, again: Reader) -> None:
    """Also those that came and went while nobody looked."""
    for attempt in (1, 2):
        append(log, b"last words of %d\n" % attempt)
        os.utime(log, (attempt, attempt))
        log.rename(log.with_name(f"server.{attempt}.log"))
        append(log, b"attempt %d\n" % (attempt + 1))

    assert again.pour() == [
        b"last words of 1\n", "restarted", b"attempt 2\nlast words of 2\n", "restarted", b"attempt 3\n",
    ]  # fmt: skip


def test_a_removed_log_is_said(log: Path, again: Reader) -> None:
    """The new one is read from its beginning, whatever inode it got."""
    log.with_name("keeps the old inode").hardlink_to(log)
    log.unlink()
    append(log, b"a new beginning\n")

    assert again.pour() == ["removed", b"a new beginning\n"]
