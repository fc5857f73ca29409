"""The check folder: read through the agent, removed by a real shell; the data set's commands do not see it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from hsops.core.dumps import MANIFEST
from hsops.core.errors import HsopsError
from hsops.core.events import ignore
from hsops.fetch.dumps import Dumps
from hsops.fetch.fetch import fetch
from hsops.fetch.pace import Streams
from hsops.fetch.pull import Wish
from hsops.remote.agent import Agent
from hsops.remote.dumps import list_samples
from hsops.verify.live.folder import CheckFolder
from hsops.verify.verify import verify
from tests.dump_maker import make


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """A server's dump folder: one sample of the data set, one check request of two ranks."""
    folder = tmp_path / "dumps of tiny"  # a blank, for the shell
    make(folder, "a", [1, 2])
    for rank in (0, 1):
        where = folder / f"check/rank{rank}"
        make(where, "t0.alone-1", [1, 2, 3])
        text = (where / MANIFEST).read_text()
        (where / MANIFEST).write_text(json.dumps({**json.loads(text), "passes": [3, 400]}) + "\n")
    return folder


def folder_of(agent: Agent, dumps: Path, **changes: str) -> CheckFolder:
    """Of two ranks."""
    return CheckFolder(agent, str(dumps), ranks=2, token=changes.get("token", "t0"))


def test_lines_of_all_ranks_come_with_their_passes(agent: Agent, dumps: Path) -> None:
    """And None for what a rank did not write."""
    lines = folder_of(agent, dumps).wait(["alone-1", "again-1"], seconds=0.3)

    assert [line.passes for line in lines["alone-1"] if line] == [(3, 400), (3, 400)]
    assert lines["again-1"] == (None, None)


def test_nothing_of_a_verify_stays(agent: Agent, dumps: Path) -> None:
    """Dumps, unfinished ones and manifests; the data set and a neighbour's file are not touched."""
    (dumps / "check/rank0/t0.cut-1.safetensors.part").write_bytes(b"half")

    folder_of(agent, dumps).clear(busy=True)
    folder_of(agent, dumps).clear(busy=False)  # a second time there is nothing to remove

    assert sorted(path.name for path in dumps.iterdir()) == ["a.safetensors", MANIFEST]


def test_what_a_busy_server_still_writes_goes_too(agent: Agent, dumps: Path) -> None:
    """An aborted request ends its pass first: dumps may come for seconds."""

    def late() -> None:
        for name in ("t0.batch-1", "t0.batch-2"):
            time.sleep(1.6)
            make(dumps / "check/rank1", name, [1])

    server = threading.Thread(target=late)
    server.start()
    folder_of(agent, dumps).clear(busy=True)
    server.join()

    assert sorted(path.name for path in dumps.iterdir()) == ["a.safetensors", MANIFEST]


def test_what_another_verify_still_needs_stays(agent: Agent, dumps: Path) -> None:
    """Two people may ask at once; what a killed one left goes with the next, an hour later."""
    make(dumps / "check/rank0", "other.alone-1", [1])
    killed = make(dumps / "check/rank1", "killed.alone-1", [1])
    os.utime(dumps / "check/rank1" / killed.file, (time.time() - 4000,) * 2)

    folder_of(agent, dumps).clear(busy=False)

    assert not (dumps / "check/rank1" / killed.file).exists()

    assert sorted(path.name for path in (dumps / "check/rank0").iterdir()) == [MANIFEST, "other.alone-1.safetensors"]


def test_a_folder_that_cannot_be_removed_is_said(agent: Agent, dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to type on the host."""
    (dumps / "fake").mkdir()
    (dumps / "fake/find").write_text("#!/bin/sh\necho find: no >&2\nexit 1\n")
    (dumps / "fake/find").chmod(0o755)
    monkeypatch.setenv("PATH", f"{dumps / 'fake'}:/usr/bin:/bin")

    with pytest.raises(HsopsError, match="cannot be removed") as caught:
        folder_of(agent, dumps).clear(busy=False)

    assert caught.value.fix.startswith("rm -r ")


def test_the_data_set_does_not_see_check_dumps(agent: Agent, dumps: Path, tmp_path: Path) -> None:
    """Listing (extract), fetch and verify, on the host's folder and on the fetched one."""
    assert list(list_samples(agent, str(dumps)).samples) == ["a"]

    source, wish = Dumps(agent, str(dumps), ignore), Wish(Streams(1, 1))
    fetched = fetch(agent, source, tmp_path / "hs", wish, ignore)

    assert list(fetched.files) == ["a.safetensors"]
    assert sorted(p.name for p in (tmp_path / "hs").iterdir() if p.suffix == ".safetensors") == ["a.safetensors"]
    assert not (tmp_path / "hs/check").exists()
    for folder in (dumps, tmp_path / "hs"):
        assert verify(folder, None, ignore).findings == ()
