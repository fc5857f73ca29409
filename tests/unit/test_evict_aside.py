"""agent.aside: what a killed evict put aside is found by whoever looks next, and nothing is taken from a living one."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import aside, doctor, dumps, evict, tree
from hsops.core.files import locked_folder

Request = dict[str, Any]


def request(folder: Path, *names: str) -> Request:
    """To remove these files."""
    files = [(name, (folder / name).stat()) for name in names]
    return {"folder": str(folder), "files": [[n, f.st_size, f.st_ino, f.st_mtime_ns, ""] for n, f in files]}


@contextmanager
def evicting(wanted: Request, then: Callable[[], None]) -> Iterator[int]:
    """A process that has put the files aside, and does ``then`` before it decides; its pid."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            look = evict._busy

            def busy(taken: dict[str, os.stat_result]) -> set[str]:
                os.write(tell, b".")
                then()
                return look(taken)

            evict._busy = busy
            evict.evict(wanted)
        finally:
            os._exit(0)
    try:
        assert os.read(ready, 1) == b"."
        yield pid
    finally:
        for handle in (ready, tell):
            os.close(handle)


def killed(wanted: Request) -> None:
    """An evict that does not come to its end."""
    with evicting(wanted, lambda: os.kill(os.getpid(), signal.SIGKILL)) as pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def listed(folder: Path, events: list[dict[str, Any]]) -> list[str]:
    """What ``tree-list`` names."""
    events.clear()
    tree.list_tree({"folder": str(folder)})
    return sorted(path for event in events for path, *_ in event.get("files", ()))


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the agent emits."""
    told = list[dict[str, Any]]()
    for module in (tree, dumps):
        monkeypatch.setattr(module.protocol, "emit", lambda kind, **more: told.append({"kind": kind, **more}))
    return told


def test_any_listing_gives_names_back(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    """Of dumps, and of a tree, whose files would else be invisible."""
    (tmp_path / "sub").mkdir()
    for name in ("a", "sub/b", "c"):
        (tmp_path / name).write_bytes(name.encode())

    killed(request(tmp_path, "a", "sub/b"))
    assert {p.name for p in tmp_path.rglob("*")} == {f"{aside.ASIDE}a", f"{aside.ASIDE}b", "c", "sub"}
    assert listed(tmp_path, events) == ["a", "c", "sub/b"]
    assert (tmp_path / "sub/b").read_bytes() == b"sub/b"

    killed(request(tmp_path, "a"))
    dumps.list_dumps({"folder": str(tmp_path)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "c", "sub"]


def test_doctor_tells_of_them_and_changes_nothing(tmp_path: Path) -> None:
    """Below the folder that has a folder a server."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny/a").write_bytes(b"a")
    killed(request(tmp_path / "tiny", "a"))

    assert doctor.put_aside(str(tmp_path)) == {f"{tmp_path}/tiny/": 1}
    assert [p.name for p in (tmp_path / "tiny").iterdir()] == [f"{aside.ASIDE}a"]


def test_nothing_is_taken_from_one_that_lives(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    """Neither by a listing nor by a second evict; when it goes on it removes the file."""
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    wait, go = os.pipe()
    with evicting(request(tmp_path, "a"), lambda: bool(os.read(wait, 1)) or None) as pid:
        assert listed(tmp_path, events) == ["b"]
        assert doctor.put_aside(str(tmp_path.parent)) == {}
        assert evict.evict(request(tmp_path, "b")) == {"removed": ["b"], "kept": {}}
        assert [p.name for p in tmp_path.iterdir()] == [f"{aside.ASIDE}a"]
        os.write(go, b".")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for handle in (wait, go):
        os.close(handle)
    assert list(tmp_path.iterdir()) == []


def test_what_another_evict_has_aside_is_not_missing(tmp_path: Path) -> None:
    """It may keep it; "missing" would be written down as evicted."""
    (tmp_path / "a").write_bytes(b"a")
    wanted = request(tmp_path, "a")
    wait, go = os.pipe()
    with evicting(wanted, lambda: bool(os.read(wait, 1)) or None) as pid:
        assert evict.evict(wanted) == {"removed": [], "kept": {"a": "open"}}
        os.write(go, b".")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for handle in (wait, go):
        os.close(handle)
    assert evict.evict(wanted) == {"removed": [], "kept": {"a": "missing"}}


def test_one_that_is_put_aside_between_two_looks_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its name again when it is looked for."""
    (tmp_path / "a").write_bytes(b"a")
    found = evict._found

    def gone(*_: object) -> os.stat_result:
        raise FileNotFoundError

    monkeypatch.setattr(evict, "_found", gone)
    assert evict.evict(request(tmp_path, "a")) == {"removed": [], "kept": {"a": "open"}}
    monkeypatch.setattr(evict, "_found", found)
    assert evict.evict(request(tmp_path, "a")) == {"removed": ["a"], "kept": {}}


def test_a_folder_that_a_fetch_writes_to_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has it for as long as it runs; files of other folders go."""
    monkeypatch.setattr(aside, "PATIENCE_S", 0.2)
    waits, flock = list[int](), fcntl.flock

    def counted(handle: int, how: int) -> None:
        waits.append(how)
        flock(handle, how)

    (tmp_path / "sub").mkdir()
    names = ("a", "b", "sub/c")
    for name in names:
        (tmp_path / name).write_bytes(b"a")
    wanted = request(tmp_path, *names)

    with locked_folder(tmp_path, "busy"):
        monkeypatch.setattr(fcntl, "flock", counted)
        answer = evict.evict(wanted)
        monkeypatch.setattr(fcntl, "flock", flock)
    assert answer == {"removed": ["sub/c"], "kept": {"a": evict.IN_USE, "b": evict.IN_USE}}
    assert all(how & fcntl.LOCK_NB for how in waits)
    assert evict.evict(wanted) == {"removed": ["a", "b"], "kept": {"sub/c": "missing"}}


def test_a_name_that_is_given_back_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no locks a listing may come in between."""
    (tmp_path / "a").write_bytes(b"a")
    look = evict._busy

    def busy(taken: dict[str, os.stat_result]) -> set[str]:
        (tmp_path / f"{aside.ASIDE}a").rename(tmp_path / "a")
        return look(taken)

    monkeypatch.setattr(evict, "_busy", busy)

    assert evict.evict(request(tmp_path, "a")) == {"removed": [], "kept": {"a": "changed"}}
    assert (tmp_path / "a").read_bytes() == b"a"
