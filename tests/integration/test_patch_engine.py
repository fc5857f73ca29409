"""The patch engine of the agent on real files: all or nothing, whatever kills it, and back byte for byte."""

from __future__ import annotations

import os
import signal
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import patch_plan, patch_site
from hsops.agent.patch_plan import Edit
from hsops.agent.patch_site import Site, sha256
from hsops.agent.patch_store import Store
from hsops.agent.protocol import Refusal

MODEL = "sglang/srt/models/model.py"
CACHE = "sglang/srt/models/__pycache__/model.cpython-311.pyc"
SYSCALLS = ("open", "write", "replace", "unlink", "mkdir", "rmdir", "fsync", "utime", "fchmod")

Listing = dict[str, Any]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    root = tmp_path / "site-packages"
    (root / "sglang/srt/models/__pycache__").mkdir(parents=True)
    (root / MODEL).write_bytes(b"class Model:\n    pass\n")
    (root / MODEL).chmod(0o640)
    os.utime(root / MODEL, ns=(10**18, 10**18))
    (root / CACHE).write_bytes(b"byte code of the original")
    (root / "other.py").write_bytes(b"untouched")
    return Site(str(root))


@pytest.fixture
def state_dir(tmp_path: Path) -> str:
    return str(tmp_path / "state")


def listing(site: Site) -> Listing:
    """Every folder and file: bytes, mode and (of files) time stamp."""
    found: Listing = {}
    for path in sorted(Path(site.root).rglob("*")):
        told = path.stat()
        name = str(path.relative_to(site.root))
        mode = stat.filemode(told.st_mode)
        found[name] = (mode, told.st_mtime_ns, path.read_bytes()) if path.is_file() else mode
    return found


def contents(site: Site) -> Listing:
    """As ``listing``, without times: what an apply may be compared by."""
    return {name: told[::2] if isinstance(told, tuple) else told for name, told in listing(site).items()}


def edits(site: Site, version: str = "1") -> list[Edit]:
    """A patch of two new files, of which one goes away in version 2, and one appended one."""
    held = site.read(MODEL)
    assert held is not None
    original = held.split(b"# patch")[0]
    wanted = {"payload/__init__.py": b"version = " + version.encode(), MODEL: original + b"# patch " + version.encode()}
    wanted[f"payload/only{version}.py"] = b"x = 1"
    return [edit(site, path, content) for path, content in wanted.items()]


def edit(site: Site, path: str, content: bytes | None) -> Edit:
    held = site.read(path)
    return Edit(path, content, 0o644, None if held is None else sha256(held), patch_plan.AS_IT_LIES)


def apply(
    site: Site, state_dir: str, wanted: list[Edit], serial: str, fence: Callable[[], None] = lambda: None
) -> None:
    store = Store(state_dir, "p", site, fence)
    store.recover()
    patch_plan.check(wanted, site, store)
    changes, entries, folders = patch_plan.applying(wanted, store)
    record = {"serial": serial, "identity": serial, "options": {}, "sglang": "1", "applied": 0.0}
    missing = [folder for folder in folders if not os.path.isdir(site.path(folder))]
    store.carry_out(changes, {**record, "folders": folders, "files": entries}, make=missing)


def revert(site: Site, state_dir: str) -> None:
    store = Store(state_dir, "p", site)
    store.recover()
    record = store.record()
    assert record is not None
    store.carry_out(patch_plan.reverting(record, judge(site, state_dir), store), None, remove=record["folders"][::-1])


def judge(site: Site, state_dir: str, version: str = "1") -> dict[str, Any]:
    return patch_plan.judge(Store(state_dir, "p", site).record(), site, version)


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Run ``work`` in a child that dies by SIGKILL before its ``step``-th system call on files; False if it ended."""
    child = os.fork()
    if child == 0:
        left = [step]

        def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return called

        for name in SYSCALLS:
            setattr(os, name, mortal(getattr(os, name)))
        try:
            work()
        except BaseException:
            os._exit(3)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the child ended with {status}"
    return status == signal.SIGKILL


def test_apply_then_revert_leaves_the_tree_as_it_was(site: Site, state_dir: str) -> None:
    """Bytes, modes, time stamps, byte code and listing are equal after a revert, even when a server ran in between."""
    before = listing(site)

    apply(site, state_dir, edits(site), "a")
    applied = judge(site, state_dir)
    cache_gone = site.read(CACHE) is None
    site_path = Path(site.root)
    (site_path / CACHE).write_bytes(b"byte code of the patched module")
    (site_path / "payload/__pycache__").mkdir()
    (site_path / "payload/__pycache__/__init__.cpython-311.pyc").write_bytes(b"byte code of the payload")
    revert(site, state_dir)

    assert applied["state"] == "applied"
    assert cache_gone
    assert listing(site) == before
    assert judge(site, state_dir)["state"] == "absent"


def test_a_newer_version_replaces_the_older_and_reverts_to_the_original(site: Site, state_dir: str) -> None:
    """The second apply drops the file that only the first had, and revert still knows the original."""
    before = listing(site)

    apply(site, state_dir, edits(site, "1"), "a")
    apply(site, state_dir, edits(site, "2"), "b")
    names = set(listing(site))
    revert(site, state_dir)

    assert "payload/only2.py" in names and "payload/only1.py" not in names
    assert listing(site) == before


def test_what_lies_there_without_a_record_is_taken_away_whole(site: Site, state_dir: str, tmp_path: Path) -> None:
    """Adopted by a second apply that knows it: the folder goes too, unless something else lies in it."""
    before = contents(site)
    apply(site, state_dir, edits(site), "a")
    lost = str(tmp_path / "another state dir")
    adopting = [e._replace(original=None) if e.path != MODEL else e for e in edits(site)]
    adopting = [e._replace(original=before[MODEL][1]) if e.path == MODEL else e for e in adopting]

    apply(site, lost, adopting, "b")
    revert(site, lost)

    assert set(contents(site)) == set(before) - {CACHE}
    assert site.read(MODEL) == before[MODEL][1]


def test_applying_the_same_again_changes_nothing(site: Site, state_dir: str) -> None:
    """Not even a time stamp."""
    apply(site, state_dir, edits(site), "a")
    before = listing(site)

    apply(site, state_dir, edits(site), "a2")

    assert listing(site) == before


@pytest.mark.parametrize("verb", ["apply", "update", "revert"])
def test_killed_at_any_step_it_is_undone_or_complete(verb: str, site: Site, state_dir: str) -> None:
    """At whichever system call the agent dies, the next verb finds the tree as before or as wanted, never between."""
    original = contents(site)
    if verb != "apply":
        apply(site, state_dir, edits(site, "1"), "a")
    before = contents(site)
    steps = 0

    while True:
        steps += 1
        work = (
            (lambda: revert(site, state_dir))
            if verb == "revert"
            else (lambda: apply(site, state_dir, edits(site, "2"), "b"))
        )
        alive = not killed_at(steps, work)
        Store(state_dir, "p", site).recover()
        after, state = contents(site), judge(site, state_dir)
        if alive:
            break
        if state["identity"] == ("a" if verb != "apply" else None):
            assert after == before, f"step {steps}"
        else:
            assert state["state"] in ("applied", "absent"), f"step {steps}"
            _back_to(verb, site, state_dir)
            assert contents(site) == before, f"step {steps}"

    assert steps > 20
    if verb == "revert":
        assert after == original
    else:
        assert state["identity"] == "b" and state["state"] == "applied"
        revert(site, state_dir)
        assert contents(site) == original


def _back_to(verb: str, site: Site, state_dir: str) -> None:
    """After a change that was complete when the kill came: the state in which the next round starts."""
    if verb != "revert":
        revert(site, state_dir)
    if verb != "apply":
        apply(site, state_dir, edits(site, "1"), "a")


@pytest.mark.parametrize("verb,halfway", [("apply", 85), ("revert", 55)])
def test_the_undoing_can_be_killed_too(verb: str, halfway: int, site: Site, state_dir: str) -> None:
    """An agent that dies while it repairs what another left is repaired by the next."""
    if verb == "revert":
        apply(site, state_dir, edits(site, "1"), "a")
    before = contents(site)
    work = (lambda: revert(site, state_dir)) if verb == "revert" else (lambda: apply(site, state_dir, edits(site), "b"))

    assert killed_at(halfway, work)
    step = 1
    while killed_at(step, lambda: Store(state_dir, "p", site).recover()):
        step += 1

    assert step > 10, "the first kill came too late or too early to leave anything to undo"
    assert contents(site) == before


def test_a_write_error_midway_is_undone_at_once(site: Site, state_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk at the third rename leaves everything as before, and no record."""
    before, real, calls = contents(site), os.replace, []

    def full(source: str, target: str) -> None:
        if site.root in str(target):
            calls.append(target)
            if len(calls) == 3:
                raise OSError(28, "No space left on device", target)
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        apply(site, state_dir, edits(site), "a")

    assert contents(site) == before
    assert judge(site, state_dir)["state"] == "absent"


def test_states_tell_what_happened_to_the_files(site: Site, state_dir: str) -> None:
    """Edited by hand is foreign; undone by a reinstall is partial; brought by an upgrade is no edit of somebody's."""
    original = site.read(MODEL)
    assert original is not None
    apply(site, state_dir, edits(site), "a")
    model = Path(site.root, MODEL)

    model.write_bytes(b"edited by hand")
    edited, upgraded = judge(site, state_dir), judge(site, state_dir, "2")
    model.write_bytes(original)
    undone = judge(site, state_dir)

    assert (edited["state"], edited["files"][MODEL]) == ("foreign", "edited")
    assert (upgraded["state"], upgraded["files"][MODEL]) == ("partial", "replaced")
    assert (undone["state"], undone["files"][MODEL]) == ("partial", "original")


def test_an_upgraded_file_survives_the_revert(site: Site, state_dir: str) -> None:
    """Reverting after an SGLang upgrade takes the payload away and leaves the new SGLang's own file alone."""
    apply(site, state_dir, edits(site), "a")
    Path(site.root, MODEL).write_bytes(b"of the new SGLang")
    store = Store(state_dir, "p", site)
    record = store.record()
    assert record is not None

    store.carry_out(patch_plan.reverting(record, judge(site, state_dir, "2"), store), None)

    assert site.read(MODEL) == b"of the new SGLang"
    assert site.read("payload/__init__.py") is None


@pytest.mark.parametrize("version,state,back", [("1", "missing", True), ("2", "replaced", False)])
def test_a_file_that_is_gone_comes_back_unless_an_upgrade_took_it(
    version: str, state: str, back: bool, site: Site, state_dir: str
) -> None:
    """The old SGLang's module beside the new one's would be imported; the same SGLang's own is missed."""
    original = site.read(MODEL)
    apply(site, state_dir, edits(site), "a")
    Path(site.root, MODEL).unlink()
    judged, store = judge(site, state_dir, version), Store(state_dir, "p", site)
    record = store.record()
    assert record is not None

    store.carry_out(patch_plan.reverting(record, judged, store), None)

    assert (judged["state"], judged["files"][MODEL]) == ("partial", state)
    assert site.read(MODEL) == (original if back else None)
    assert (site.read(CACHE) is not None) == back
    assert site.read("payload/__init__.py") is None


def test_a_file_that_changed_since_the_client_looked_is_refused(site: Site, state_dir: str) -> None:
    """The precondition is checked before anything is written."""
    wanted = edits(site)
    Path(site.root, MODEL).write_bytes(b"changed meanwhile")

    with pytest.raises(Refusal) as caught:
        patch_plan.check(wanted, site, Store(state_dir, "p", site))

    assert caught.value.code == "changed-meanwhile"


def test_a_folder_that_is_not_ours_to_write_is_told_before_anything_is_tried() -> None:
    """As an unprivileged user: root may write everywhere."""
    with tempfile.TemporaryDirectory(prefix="hsops-ro-") as folder:
        root = Path(folder, "site-packages")
        root.mkdir()
        os.chmod(folder, 0o755)
        root.chmod(0o555)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(write, Site(str(root)).unwritable("sglang/new.py").encode())
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        said = os.read(read, 4096).decode()
        os.close(read)
        root.chmod(0o755)

    assert said == f"{os.path.realpath(folder)}/site-packages is not writable for this user"


@pytest.mark.parametrize("path", ["../x.py", "/etc/passwd", "a/../../x", "", "link/x.py", "a//b", "out.py"])
def test_nothing_outside_the_site_folder_can_be_named(path: str, site: Site, tmp_path: Path) -> None:
    """Not by dots, not absolutely, not through a link."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "secret").write_text("x")
    Path(site.root, "link").symlink_to(tmp_path / "elsewhere")
    Path(site.root, "out.py").symlink_to(tmp_path / "secret")

    with pytest.raises(Refusal) as caught:
        site.path(path)

    assert caught.value.code == "escapes-root"


def test_what_could_not_come_out_does_not_go_in(site: Site, state_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revert asks for the file as it is then and as it was, in one answer; a second version has the same original."""
    wanted = [edit(site, MODEL, b"x" * 50)]
    store = Store(state_dir, "p", site)
    size = len(site.read(MODEL) or b"")
    monkeypatch.setattr(patch_site, "LARGEST", 50 + size)

    patch_plan.check_size(wanted, store)
    apply(site, state_dir, wanted, "a")
    patch_plan.check_size([edit(site, MODEL, b"y" * 50)], store)
    with pytest.raises(Refusal, match="what was there before") as caught:
        patch_plan.check_size([edit(site, MODEL, b"y" * 51)], store)

    assert caught.value.code == "file-too-large"
    assert patch_plan.length(patch_plan.originals(store)) in range(size - 3, size + 4)
