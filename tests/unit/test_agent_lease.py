"""The lease of a host's lock on a bad day: a full disk, a slow one, a process that cannot be ended."""

from __future__ import annotations

import base64
import errno
import itertools
import json
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import leases, lock, lock_verbs, patch, procs
from hsops.agent.patch_site import Site, sha256
from hsops.agent.patch_store import Store
from hsops.agent.protocol import Refusal
from tests.integration.test_patch_engine import apply, contents, edits

MODEL = "sglang/srt/models/model.py"


@pytest.fixture
def state_dir(tmp_path: Path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A small tree to change."""
    root = tmp_path / "site"
    (root / MODEL).parent.mkdir(parents=True)
    (root / MODEL).write_bytes(b"class Model: ...\n")
    return Site(str(root))


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every renewal is due, and none too late."""
    monkeypatch.setattr(leases, "age", lambda lease: lease["ttl"] / 2)


@pytest.fixture
def stuck(state_dir: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that works under an expired lease and cannot be ended, for as long as the monkey is there."""
    process = subprocess.Popen(["sleep", "600"])
    found = procs.look(process.pid)
    assert found
    lease = leases.fresh(None, lock.asked({"lock": {"who": "bob@box", "token": "bob"}}))
    assert leases.claim(leases.folder_of(state_dir), {**lease, "agent": [process.pid, found.start], "clock": -1e9})
    monkeypatch.setattr(procs, "send", lambda *_: True)
    monkeypatch.setattr(leases, "_END_S", 0.0)
    yield process
    process.kill()
    process.wait(10)


def full(*_: Any, **__: Any) -> Any:
    """Stands for a write to a disk without room."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "the disk")


def holder(state_dir: str) -> int:
    return leases.highest(leases.folder_of(state_dir))


def failing(after: int, call: Callable[..., Any], times: float = math.inf) -> Callable[..., Any]:
    """``call``, ``after`` times; then ``full``, so many times."""
    calls = itertools.count(-after)

    def called(*args: Any, **kwargs: Any) -> Any:
        return (full if 0 <= next(calls) < times else call)(*args, **kwargs)

    return called


def applied(site: Site, state_dir: str) -> dict[str, Any]:
    """The parameters of an apply of two files, and of its revert."""
    held = site.read(MODEL)
    assert held

    def edit(path: str, old: bytes | None, new: bytes) -> dict[str, Any]:
        content = base64.b64encode(new).decode()
        return {"path": path, "content_b64": content, "mode": 0o644, "before_sha256": old and sha256(old)}

    files = [edit("payload/x.py", None, b"x = 1"), edit(MODEL, held, held + b"# patch")]
    always = {"state_dir": state_dir, "lock": {"ttl": 600}, "patch": "p", "place": site.root}
    return {**always, "identity": "i", "options": {}, "edits": files}


@pytest.mark.usefixtures("due")
def test_a_renewal_that_a_full_disk_refuses_ends_no_change(
    site: Site, state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again at the next step; the time that is left is enough."""
    monkeypatch.setattr(leases, "write", failing(2, leases.write))

    with lock.held({"state_dir": state_dir, "lock": {"ttl": 600}}) as mine:
        apply(site, state_dir, edits(site), "a", fence=mine.check)

    assert site.read("payload/only1.py") == b"x = 1" and not Store(state_dir, "p", site).pending()


@pytest.mark.usefixtures("due")
def test_a_change_that_a_full_disk_ends_is_undone(site: Site, state_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its lease cannot be renewed either."""
    before = contents(site)
    with lock.held({"state_dir": state_dir, "lock": {"ttl": 600}}) as mine:
        monkeypatch.setattr(leases, "write", full)
        monkeypatch.setattr(Site, "place", failing(1, Site.place, times=1))

        with pytest.raises(OSError, match="No space"):
            apply(site, state_dir, edits(site), "a", fence=mine.check)

    assert contents(site) == before and not Store(state_dir, "p", site).pending()


def test_a_lease_that_no_disk_took_is_lost_when_its_time_is_over(
    state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To others it has expired, so it has for its holder."""
    with lock.held({"state_dir": state_dir, "lock": {"ttl": 600}}) as mine:
        assert mine.lease
        monkeypatch.setattr(leases, "write", full)
        mine.lease["clock"] -= 300
        mine.check()
        mine.lease["clock"] -= 301

        with pytest.raises(Refusal, match="it expired") as caught:
            mine.check()

    assert caught.value.code == "lock-lost"


def test_a_renewal_that_fails_leaves_no_file(state_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried at every step: a full disk must not fill up with names."""
    with lock.held({"state_dir": state_dir}) as mine:
        with monkeypatch.context() as patched:
            patched.setattr(json, "dump", full)
            assert mine.renew()
        assert os.listdir(leases.folder_of(state_dir)) == ["1.lease"]


def test_what_could_not_be_undone_is_not_called_unchanged(
    site: Site, state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk does not even say any more whose the lock is."""
    before, place = contents(site), failing(1, Site.place)

    def broken_from_here(*args: Any) -> str:
        try:
            return str(place(*args))
        except OSError:
            monkeypatch.setattr(leases, "highest", full)
            raise

    monkeypatch.setattr(Site, "place", broken_from_here)
    with pytest.raises(Refusal, match="device; the change is half done") as caught:
        patch.apply(applied(site, state_dir))
    monkeypatch.undo()

    store = Store(state_dir, "p", site)
    assert (caught.value.code, caught.value.detail["folder"]) == ("unfinished", store.folder)
    assert store.pending() and contents(site) != before
    assert store.recover() == {"what": "undone", "left": []} and contents(site) == before


def test_what_was_undone_is_called_unchanged(site: Site, state_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that failed, on a disk that is well otherwise."""
    before = contents(site)
    monkeypatch.setattr(Site, "place", failing(1, Site.place, times=1))

    with pytest.raises(Refusal, match="device; nothing was changed") as caught:
        patch.apply(applied(site, state_dir))

    assert caught.value.code == "no-room" and contents(site) == before


@pytest.mark.usefixtures("due")
@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_a_slow_disk_costs_no_lock(
    verb: str, site: Site, state_dir: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However long one sync takes: the lease is renewed meanwhile, and the client hears of it."""
    wanted = applied(site, state_dir)
    if verb == "revert":
        patch.apply(wanted)
    monkeypatch.setattr(lock, "_BEAT_S", 0.01)
    capsys.readouterr()
    fsync, slow = os.fsync, []

    def first_is_slow(handle: int) -> None:
        if not slow:
            slow.append(renewed(state_dir))
            wait_for(lambda: renewed(state_dir) > slow[0])
        fsync(handle)

    monkeypatch.setattr(os, "fsync", first_is_slow)

    done = patch.apply(wanted) if verb == "apply" else patch.revert(wanted)

    assert slow and MODEL in done["changed"]
    assert '{"event":{"kind":"beat"}}' in capsys.readouterr().out


@pytest.mark.usefixtures("due")
def test_work_that_stands_still_is_not_kept_alive(state_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock is never for ever: a step may be long, not endless."""
    monkeypatch.setattr(lock, "_BEAT_S", 0.01)
    with lock.held({"state_dir": state_dir, "lock": {"ttl": 600}}) as mine:
        before = renewed(state_dir)
        with mine.kept_alive(step=0.0):
            wait_for(lambda: not any("_keep_alive" in thread.name for thread in threading.enumerate()))
        assert renewed(state_dir) == before


def test_a_process_that_cannot_be_ended_is_not_forgotten(
    stuck: subprocess.Popen[bytes], state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes is refused, not only the first; when it is gone the lock is to be had."""
    for _ in range(2):
        with pytest.raises(Refusal, match=f"its process {stuck.pid} on the host cannot be ended") as caught:
            lock.held({"state_dir": state_dir, "lock": {"wait": 0}}).__enter__()
        assert caught.value.code == "not-ended" and holder(state_dir) == 1

    monkeypatch.undo()
    with lock.held({"state_dir": state_dir}) as mine:
        assert mine.before and mine.before["token"] == "bob" and holder(state_dir) == 2
    assert stuck.wait(10) < 0


@pytest.mark.usefixtures("stuck")
def test_in_an_emergency_one_goes_on_beside_it(state_dir: str) -> None:
    """``stop --force`` waits for nobody."""
    with lock.held({"state_dir": state_dir, "lock": {"wait": 0, "force": True}}) as mine:
        assert mine.lease is None and mine.beside and mine.beside["who"] == "bob@box"


@pytest.mark.usefixtures("stuck")
def test_unlock_and_those_who_look_do_not_forget_it_either(state_dir: str) -> None:
    """It may still write."""
    with pytest.raises(Refusal, match="cannot be ended"):
        lock_verbs.evict({"state_dir": state_dir, "n": 1})
    assert holder(state_dir) == 1

    folder = os.path.join(state_dir, "patches")
    with lock.exclusive(folder, {"state_dir": state_dir}), pytest.raises(Refusal, match="cannot be ended"):
        lock.exclusive(folder, {"state_dir": state_dir}).__enter__()
    assert holder(state_dir) == 1


def test_nobody_ends_itself(state_dir: str) -> None:
    """Whose own lease expired while it waited is told so."""
    with lock.held({"state_dir": state_dir}) as mine:
        child = os.fork()
        if child == 0:
            os._exit(int(leases.end({**(mine.lease or {}), **leases.worker()})))
        assert os.waitpid(child, 0)[1] == 0


def renewed(state_dir: str) -> float:
    """When the lease was renewed, as others see it."""
    _, lease = leases.current(leases.folder_of(state_dir))
    assert lease
    return float(lease["renewed"])


def asked(state_dir: str, token: str, who: str = "") -> dict[str, Any]:
    """The parameters of a verb of ``who``."""
    return {"state_dir": state_dir, "lock": {"token": token, "who": who or f"{token}@box", "command": token, "wait": 0}}


def expire(state_dir: str) -> None:
    """The lease that counts is of a process that is gone."""
    folder = leases.folder_of(state_dir)
    n, lease = leases.current(folder)
    assert lease
    os.replace(leases.write(folder, {**lease, "free": False, "agent": [1, -1]}), leases.path(folder, n))


def test_who_lost_the_lock_is_told_by_whom_it_was_taken(state_dir: str) -> None:
    """By the command's token, however many had it since, whatever the clock says; who gave it back lost nothing."""
    with lock.held(asked(state_dir, "ann")):
        pass
    expire(state_dir)
    lock_verbs.evict({**asked(state_dir, "bob"), "n": 1})
    for token in ("cy", "dan"):
        with lock.held(asked(state_dir, token)):
            pass

    told = {token: lock_verbs.show(asked(state_dir, token))["taken"] for token in ("ann", "bob", "cy", "dan", "eve")}

    assert told == {"ann": "bob@box took it with 'bob'", "bob": "", "cy": "", "dan": "", "eve": ""}


def test_who_lost_the_lock_is_remembered_for_a_while_not_for_ever(state_dir: str) -> None:
    """A lease stays a small file."""
    for i in range(40):
        with lock.held(asked(state_dir, f"t{i}")):
            pass
        expire(state_dir)
    with lock.held(asked(state_dir, "last")) as mine:
        assert mine.lease and len(mine.lease["lost"]) == leases._KNOWN
    assert lock_verbs.show(asked(state_dir, "t39"))["taken"] == "last@box took it with 'last'"


def test_a_command_that_asks_before_its_ender_has_claimed_is_told_all_the_same(state_dir: str) -> None:
    """Whoever takes an expired lock first ends its process, whose client may ask at once."""
    with lock.held(asked(state_dir, "ann")):
        pass
    expire(state_dir)
    found: list[str] = []
    looking = threading.Thread(target=lambda: found.append(lock_verbs.show(asked(state_dir, "ann"))["taken"]))
    looking.start()
    lock_verbs.evict({**asked(state_dir, "bob"), "n": 1})
    looking.join(30)

    assert found == ["bob@box took it with 'bob'"]


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not done():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


def test_who_takes_his_own_expired_lock_again_lost_it_to_nobody(state_dir: str) -> None:
    """Its own name would be told as that of the taker."""
    with lock.held(asked(state_dir, "ann")):
        pass
    expire(state_dir)
    with lock.held(asked(state_dir, "ann")):
        pass

    assert lock_verbs.show(asked(state_dir, "ann"))["taken"] == ""


def test_a_kept_lock_lives_until_the_next_request_may_have_come(state_dir: str) -> None:
    """A large one on a slow line; at work it lives as long as ever."""
    wanted = asked(state_dir, "ann")
    wanted["lock"] |= {"keep": True, "keep_ttl": 380.0}

    with lock.held(wanted):
        pass
    _, kept = leases.current(leases.folder_of(state_dir))
    with lock.held({**wanted, "lock": {**wanted["lock"], "held": True}}) as again:
        pass

    assert kept and kept["ttl"] == 380.0 and not kept["free"]
    assert again.lease and again.lease["n"] == kept["n"]


def test_at_work_a_kept_lock_lives_as_long_as_any(state_dir: str) -> None:
    """What it waited for has come."""
    wanted = asked(state_dir, "ann")
    with lock.held({**wanted, "lock": {**wanted["lock"], "keep": True, "keep_ttl": 380.0}}):
        pass

    with lock.held({**wanted, "lock": {**wanted["lock"], "held": True}}) as again:
        assert again.lease and again.lease["ttl"] == leases.TTL_S
