"""Something shared by all labs is built once, and is there whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hsops.core.events import Event, ignore
from hsops.lab import cache


def make(folder: Path) -> None:
    folder.mkdir()
    (folder / "content").write_text("whole")


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    """The second lab starts in a moment."""
    first = cache.built(tmp_path / "set", make, ignore)

    second = cache.built(tmp_path / "set", lambda _: pytest.fail("built twice"), ignore)

    assert first == second and (second / "content").read_text() == "whole"


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_build_leaves_nothing(tmp_path: Path, failure: BaseException) -> None:
    """Also when it is Ctrl-C; the next attempt succeeds."""

    def fail(folder: Path) -> None:
        make(folder)
        raise failure

    with pytest.raises(type(failure)):
        cache.built(tmp_path / "set", fail, ignore)

    assert [path.name for path in tmp_path.iterdir()] == ["set.lock"]
    assert cache.built(tmp_path / "set", make, ignore).is_dir()


def test_what_a_killed_builder_left_is_removed(tmp_path: Path) -> None:
    """A half-built set is never used."""
    make(tmp_path / "set.building-4711")

    cache.built(tmp_path / "set", make, ignore)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.lock"]


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    """The second waits, says so, and takes what the first has built."""
    building, may_finish, waits = threading.Event(), threading.Event(), threading.Event()
    built: list[str] = []

    def build(folder: Path) -> None:
        building.set()
        assert may_finish.wait(20)
        built.append(threading.current_thread().name)
        make(folder)

    def told(_event: Event) -> None:
        waits.set()

    threads = [threading.Thread(target=cache.built, args=(tmp_path / "set", build, told)) for _ in range(2)]
    threads[0].start()
    assert building.wait(20)
    threads[1].start()
    assert waits.wait(20)
    may_finish.set()
    for thread in threads:
        thread.join(20)

    assert len(built) == 1
    assert (tmp_path / "set" / "content").exists()


def test_the_cache_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HSOPS_CACHE_DIR names another folder, for a disk with more room."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))

    assert cache.folder() == tmp_path / "lab"
