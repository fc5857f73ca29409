"""The agent's dumps-list and dumps-follow as real processes on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hsops.core.dumps import MANIFEST
from hsops.core.errors import AgentError
from hsops.remote.agent import Agent
from hsops.remote.dumps import News, follow, list_samples
from tests.dump_maker import fail, make

TORN = '{"id": "torn", "status": "o'


@contextmanager
def following(agent: Agent, folder: Path, pid: int | None = None) -> Iterator[Callable[[], News]]:
    """A function that waits for the next news that is not only about space."""
    position = list_samples(agent, str(folder)).position
    with follow(agent, str(folder), position=position, pid=pid) as news:
        yield lambda: next(item for item in news if item.space is None)


def test_a_folder_that_is_not_there_is_empty(agent: Agent, tmp_path: Path) -> None:
    """Nothing was extracted yet: no error, and the free bytes of where it will be."""
    listing = list_samples(agent, str(tmp_path / "none/tiny"))

    assert (listing.samples, listing.exists) == ({}, False)
    assert 0 < listing.free <= listing.total


def test_the_listing_is_what_the_manifest_says(agent: Agent, tmp_path: Path) -> None:
    """Thousands of lines, a retried sample, a foreign line, a torn line."""
    folder = tmp_path / "tiny"
    fail(folder, "s0", "first try")
    made = [make(folder, f"s{i}", [i + 1]) for i in range(3)]
    text = (folder / MANIFEST).read_text()
    with (folder / MANIFEST).open("a") as file:
        file.write(text * 700 + '{"id": "../evil"}\n' + TORN)

    listing = list_samples(agent, str(folder))

    assert list(listing.samples.values()) == made
    assert len(listing.unreadable) == 1
    assert listing.exists


def test_new_lines_are_told_when_they_are_whole(agent: Agent, tmp_path: Path) -> None:
    """Also the first ones of a folder that appears, and the rest of a line that was torn."""
    folder = tmp_path / "tiny"
    with following(agent, folder) as following_:
        first = make(folder, "s0", [1])
        assert following_().samples == (first,)

        line = (folder / MANIFEST).read_text().replace('"s0"', '"s1"')
        with (folder / MANIFEST).open("a", buffering=1) as file:
            file.write(line[:20])
            file.flush()
            file.write(line[20:])

        assert [sample.id for sample in following_().samples] == ["s1"]


def test_only_what_is_new_is_told(agent: Agent, tmp_path: Path) -> None:
    """The position of the listing is where following starts."""
    make(tmp_path, "old", [1])
    with following(agent, tmp_path) as following_:
        make(tmp_path, "new", [1])

        assert [sample.id for sample in following_().samples] == ["new"]


@pytest.mark.parametrize("how", ["replaced", "cut"])
def test_another_manifest_is_told_as_such(agent: Agent, tmp_path: Path, how: str) -> None:
    """Somebody emptied the folder: what was known is void."""
    make(tmp_path, "a", [1])
    with following(agent, tmp_path) as following_:
        if how == "replaced":
            (tmp_path / MANIFEST).rename(tmp_path / "away")
            make(tmp_path, "b", [1])
        else:
            (tmp_path / MANIFEST).write_text("")

        assert following_().restarted


def test_the_end_of_the_process_is_told_after_its_last_line(agent: Agent, tmp_path: Path) -> None:
    """What it wrote before it died is not lost."""
    victim = subprocess.Popen(["sleep", "600"])
    try:
        with following(agent, tmp_path, victim.pid) as following_:
            make(tmp_path, "last", [1])
            victim.kill()  # a zombie until it is waited for: dead all the same

            assert [sample.id for sample in following_().samples] == ["last"]
            assert following_().gone
    finally:
        victim.kill()
        victim.wait()


@pytest.mark.parametrize("where", ["file", "manifest"])
def test_what_cannot_be_read_is_a_refusal(agent: Agent, tmp_path: Path, where: str) -> None:
    """A file where the folder should be, a folder where the manifest should be."""
    folder = tmp_path / "tiny"
    if where == "file":
        folder.write_text("")
    else:
        (folder / MANIFEST).mkdir(parents=True)

    with pytest.raises(AgentError) as caught:
        list_samples(agent, str(folder))

    assert caught.value.code == "unreadable"
