"""What hsops remembers is damaged or gone: told with what to do, never followed, and never a wrong tree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsops.core.errors import AgentError, ForeignError, RemoteError
from tests.faults.box import PACKAGE, REGISTRY, SOURCE, Box
from tests.faults.ground import LONG_AGO, sha256
from tests.faults.syscalls import calls, strace

Damage = Callable[[bytes], bytes]


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """Deployed."""
    box = Box(tmp_path)
    box.deploy()
    return box


def memory(box: Box) -> Path:
    (record,) = box.state.glob("patches/hs-dump/*/record.json")
    return record.parent


def changed(**values: Any) -> Damage:
    return lambda data: json.dumps({**json.loads(data), **values}).encode()


DAMAGES: dict[str, Damage] = {
    "empty": lambda _: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "garbage": lambda _: b"\x80\x04\xff" * 99,
    "another type": lambda _: b"[1, 2]",
    "null": lambda _: b"null",
    "nothing in it": lambda _: b"{}",
    "files of another type": changed(files="all", changes={"a": 1}),
    "entries of another type": changed(files=["a"], changes=[None]),
    "a state of another type": changed(
        files=[{"path": REGISTRY, "cache": False, "original": {"sha256": "../../x", "mode": 420}, "after": None}],
        changes=[{"path": REGISTRY, "before": {"sha256": "../../x", "mode": 420}, "after": None}],
    ),
    "folders of another type": changed(folders=[1], made=[1], removed=None),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["record.json", "journal.json"])
def test_a_damaged_memory_is_told_and_not_followed(name: str, damage: str, box: Box) -> None:
    """By deploy, --status and --revert alike, with the file and what to do; no file changes."""
    file = memory(box) / name
    record = (memory(box) / "record.json").read_bytes()
    journal = {"after": json.loads(record)["serial"], "changes": [], "made": [], "removed": []}
    file.write_bytes(DAMAGES[damage](record if name == "record.json" else json.dumps(journal).encode()))
    before = box.tree()

    for verb in (lambda: box.deploy(boundaries=(2,)), box.status, box.revert):
        with pytest.raises(AgentError) as caught:
            verb()
        assert (caught.value.code, box.tree()) == ("damaged", before)
        assert str(file) in caught.value.message and "force-reinstall" in caught.value.fix


def test_the_way_out_that_is_told_works(box: Box) -> None:
    """SGLang's own files back, the memory moved away, --force: taken over, and a revert then takes all of it out."""
    folder = memory(box)
    (folder / "record.json").write_bytes(b"{")
    box.write(SOURCE)
    shutil.move(folder, box.folder / "away")

    with pytest.raises(ForeignError):
        box.deploy()
    box.deploy(force=True)
    status = box.status()
    box.revert()

    assert status == "applied"
    assert box.registry.read_bytes() == SOURCE and not (box.site / PACKAGE).exists()


@pytest.mark.parametrize("how", ["changed", "truncated", "gone"])
def test_a_revert_without_sound_bytes_changes_nothing(how: str, box: Box) -> None:
    """It says which; when SGLang's file is back by other means, the same revert takes the rest out."""
    blob = memory(box) / "blobs" / sha256(SOURCE)
    if how == "gone":
        blob.unlink()
    else:
        blob.write_bytes(SOURCE[:-1] if how == "truncated" else SOURCE.replace(b"self", b"elf_"))
    before = box.tree()

    with pytest.raises(AgentError) as caught:
        box.revert()
    after = box.tree()
    box.write(SOURCE)
    box.revert()

    assert caught.value.code == "damaged" and str(blob) in caught.value.message
    assert after == before
    assert box.registry.read_bytes() == SOURCE and not (box.site / PACKAGE).exists()


def test_a_lost_state_dir_is_told(box: Box) -> None:
    """There is no record: neither deploy nor revert guesses; --force takes over and the revert is whole."""
    shutil.rmtree(box.state)

    for verb in (lambda: box.deploy(boundaries=(2,)), box.revert):
        with pytest.raises(ForeignError) as caught:
            verb()
        assert "no record" in caught.value.message + caught.value.why and "--force" in caught.value.fix
    assert box.status() == "foreign"
    box.deploy(force=True)
    box.revert()

    assert box.registry.read_bytes() == SOURCE and not (box.site / PACKAGE).exists()


@pytest.fixture
def half(tmp_path: Path) -> Box:
    """Killed when the record was to be written: every file is changed."""
    box = Box(tmp_path)
    log, plain, kept = tmp_path / "trace", box.python, tmp_path / "kept"
    shutil.copytree(box.site, kept)  # the first deploy is for its trace
    box.wrap(f'exec {" ".join(strace(log))} "$@"')
    box.deploy()
    shutil.rmtree(box.site)
    shutil.rmtree(box.state / "patches")
    kept.rename(box.site)
    (record,) = [c for c in calls(log) if c.name == "rename" and c.paths[-1].endswith("record.json")]
    box.python = plain
    box.wrap(f'exec {" ".join(strace(log, f"rename:signal=KILL:when={record.nth}"))} "$@"')
    with pytest.raises(RemoteError, match="signal 9") as caught:
        box.deploy()
    box.python = plain
    assert "hsops deploy --status" in caught.value.fix and PACKAGE.encode() in box.registry.read_bytes()
    return box


def test_what_somebody_changed_since_the_crash_is_left(half: Box) -> None:
    """An upgrade of SGLang comes before the next hsops command: the old registry must not come over the new one."""
    half.write(SOURCE + b"# of the next release\n")

    state = half.status()

    assert half.registry.read_bytes() == SOURCE + b"# of the next release\n"
    assert half.registry.stat().st_mtime_ns == LONG_AGO
    assert not (half.site / PACKAGE).exists() and state == "absent"
    assert half.told == [
        "an interrupted change of hs-dump was undone: its files are as before; "
        f"left as somebody else made them since: {REGISTRY}"
    ]


def test_an_undoing_that_cannot_be_is_tried_again(half: Box) -> None:
    """The bytes from before are damaged: refused every time, until the file is back by other means."""
    (blob,) = half.state.glob(f"patches/hs-dump/*/blobs/{sha256(SOURCE)}")
    blob.write_bytes(b"damaged")

    for _ in range(2):
        with pytest.raises(AgentError) as caught:
            half.status()
        assert caught.value.code == "damaged" and str(blob) in caught.value.message
    half.write(SOURCE)

    assert half.status() == "absent"
    assert not (half.site / PACKAGE).exists()


def test_a_crash_before_an_uninstall_is_no_obstacle(half: Box) -> None:
    """SGLang is removed and installed again with what was there."""
    shutil.rmtree(half.site / "sglang/srt")
    (half.site / "sglang/srt/models").mkdir(parents=True)
    half.write(SOURCE)

    assert half.status() == "absent"
    assert half.registry.read_bytes() == SOURCE and not (half.site / PACKAGE).exists()
