"""Two servers with one dump folder: the second says no, and touches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hsops.payload.hsops_hs_dump.claim import LOOK_S, Claim, TakenError
from hsops.payload.hsops_hs_dump.manifest import MANIFEST
from hsops.payload.hsops_hs_dump.rows import Ticket
from hsops.payload.hsops_hs_dump.writers import Writers
from tests.unit.capture_parts import InMemory, manifest, settings_for, whole_pass
from tests.unit.test_capture_pass import Model, batch, capture_in, run

ROOT = Path(__file__).parents[2]


@contextmanager
def another(folder: Path, *words: str, gets_it: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A process that has the folder as long as the context is open, or ends because it does not get it."""
    command = [sys.executable, str(ROOT / "tests/victims/claimer.py"), str(folder), *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, **pipes) as process:
        assert process.stdout and process.stdout.readline() == ("ready\n" if gets_it else "")
        yield process


def claim_of(folder: Path, rank: int = 0) -> Claim:
    """This process's."""
    return Claim(settings_for(folder), rank)


def test_a_folder_has_one_server_at_a_time(tmp_path: Path) -> None:
    """The second is told who the first is; what the end of the first leaves is free."""
    claim = claim_of(tmp_path)
    with another(tmp_path) as first:
        with pytest.raises(TakenError) as taken:
            claim.take()
        claim_of(tmp_path, rank=1).take()

    assert f"run 1130-other (pid {first.pid}) writes into {tmp_path}" in str(taken.value)
    claim.take()
    assert claim.problem() == "" and (tmp_path / "hello/rank0.lock").read_text() == f"run r (pid {os.getpid()})\n"


def test_what_a_rank_has_forked_does_not_keep_its_folder(tmp_path: Path) -> None:
    """A killed rank may leave a compiler's child behind; the next launch is not to fail for it."""
    with another(tmp_path, "fork") as first:
        assert first.wait(20) == 0
        claim_of(tmp_path).take()


def test_a_server_that_comes_second_captures_nothing(tmp_path: Path) -> None:
    """Its hello file says no, its passes go on, and the first one's unfinished dump stays."""
    (tmp_path / "a.safetensors.part").write_bytes(b"half of it")
    with another(tmp_path) as first:
        capture, _ = capture_in(tmp_path)
        returned = run(capture, Model(), batch((Ticket("a", 3), 3, 0)))

    told = json.loads(next((tmp_path / "hello").glob("*.json")).read_text())
    assert (told["ok"], f"pid {first.pid}" in told["reason"]) == (False, True)
    assert returned == [0, 1, 2] and not (tmp_path / MANIFEST).exists()
    assert (tmp_path / "a.safetensors.part").read_bytes() == b"half of it"


def test_a_folder_that_is_taken_away_stays_its_servers(tmp_path: Path) -> None:
    """It is claimed anew a second later, also once another server had it meanwhile, whose rows stay alone in it."""
    folder, clock = tmp_path / "dumps", [0.0]
    writers = Writers(settings_for(folder), {"sglang": "0.5.9"}, 0, lambda _slots: None, now=lambda: clock[0])

    def write(name: str) -> None:
        clock[0] += LOOK_S
        ids, pieces = whole_pass({name: [1, 2, 3]})
        writers.submit(InMemory(ids, 3), pieces)

    writers.open()
    write("a")
    folder.rename(tmp_path / "away")  # not removed: its writer may be at work
    with another(folder):
        write("b")
    write("c")
    with another(folder, gets_it=False) as late:
        assert late.wait(20) != 0
    writers.close()

    lines = {line.id: line.reason for line in manifest(folder)}
    assert lines["c"] == "" and "was removed, and now run 1130-other (pid " in lines["b"]


def test_a_capture_that_cannot_begin_keeps_nobody_out(tmp_path: Path) -> None:
    """The server is told to be stopped, but another one may be faster."""
    (tmp_path / MANIFEST).mkdir()

    capture, _ = capture_in(tmp_path)
    run(capture, Model(), batch((Ticket("a", 3), 3, 0)))

    with another(tmp_path) as next_one:
        assert next_one.poll() is None


def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some network file systems have none; the server captures all the same."""
    monkeypatch.setattr("fcntl.lockf", lambda *_: (_ for _ in ()).throw(OSError(37, "No locks available")))

    claim_of(tmp_path).take()

    assert "would not be noticed" in capsys.readouterr().err
