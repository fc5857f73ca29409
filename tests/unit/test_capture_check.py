"""Check requests: every rank writes them, into a folder of its own, and the data set knows nothing of them."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from hsops.core.dumps import parse_sample
from hsops.payload.hsops_hs_dump.manifest import MANIFEST
from hsops.payload.hsops_hs_dump.rows import Ticket
from hsops.payload.hsops_hs_dump.writers import RETRY_S, Writers
from tests.unit.capture_parts import manifest, settings_for, whole_pass
from tests.unit.test_capture_pass import Model, batch, capture_in, run


def lines(folder: Path) -> dict[str, dict[str, Any]]:
    """The manifest's lines by id, as they are."""
    return {line["id"]: line for line in map(json.loads, (folder / MANIFEST).read_text().splitlines())}


def ranks(folder: Path) -> list[Any]:
    """The captures of two ranks with one dump folder."""
    return [capture_in(folder, rank=rank)[0] for rank in (0, 1)]


def test_every_rank_writes_a_check_request_and_only_rank_0_the_data_set(tmp_path: Path) -> None:
    """One pass with rows of both kinds: two files of rank 0, one of rank 1, the same bytes."""
    for capture in ranks(tmp_path):
        run(capture, Model(), batch((Ticket("a", 3), 3, 0), (None, 2, 0), (Ticket("p", 4, check=True), 4, 0)))
        capture._writers.close()

    assert [sample.id for sample in manifest(tmp_path)] == ["a"]
    assert [sample.id for sample in manifest(tmp_path / "check/rank0")] == ["p"]
    first, second = ((tmp_path / f"check/rank{rank}/p.safetensors").read_bytes() for rank in (0, 1))
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "check", "hello", MANIFEST]


def test_the_line_says_how_large_the_passes_were(tmp_path: Path) -> None:
    """Whose company the prompt was in is what two captures of it are compared over."""
    capture = ranks(tmp_path)[1]
    ticket = Ticket("p", 4, check=True)

    run(capture, Model(), batch((None, 7, 0), (ticket, 1, 0)))
    run(capture, Model(), batch((ticket, 3, 1)))
    capture._writers.close()

    line = lines(tmp_path / "check/rank1")["p"]
    assert line["passes"] == [8, 3]
    assert parse_sample(json.dumps(line)).ok


def test_a_data_sample_and_a_check_of_one_id_are_two(tmp_path: Path) -> None:
    """Neither takes the other for its second attempt."""
    capture = ranks(tmp_path)[0]
    data, check = Ticket("p", 2), Ticket("p", 2, check=True)

    run(capture, Model(), batch((data, 1, 0), (check, 1, 0)))
    run(capture, Model(), batch((data, 1, 1), (check, 1, 1)))
    capture._writers.close()

    assert lines(tmp_path)["p"]["status"] == lines(tmp_path / "check/rank0")["p"]["status"] == "ok"
    assert "passes" not in lines(tmp_path)["p"]


def test_without_check_requests_there_is_no_check_folder(tmp_path: Path) -> None:
    """And rank 1 writes nothing but its hello file."""
    for capture in ranks(tmp_path):
        run(capture, Model(), batch((Ticket("a", 3), 3, 0)))
        capture._writers.close()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "hello", MANIFEST]


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """``hsops verify --live`` removes the check folder when it is done; the next one finds a writer that goes on."""
    capture, folder = ranks(tmp_path)[1], tmp_path / "check/rank1"
    run(capture, Model(), batch((Ticket("p", 3, check=True), 3, 0)))
    until = time.monotonic() + 60
    while "p" not in lines(folder):
        assert time.monotonic() < until
    shutil.rmtree(tmp_path / "check")

    run(capture, Model(), batch((Ticket("q", 3, check=True), 3, 0)))
    capture._writers.close()

    assert list(lines(folder)) == ["q"]


def test_a_check_folder_that_cannot_be_written_costs_the_check_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sample beside it is captured."""
    (tmp_path / "check").write_text("in the way")
    capture = ranks(tmp_path)[0]

    run(capture, Model(), batch((Ticket("a", 3), 3, 0), (Ticket("p", 4, check=True), 4, 0)))
    capture._writers.close()

    assert lines(tmp_path)["a"]["status"] == "ok"
    assert "check requests are not written" in capsys.readouterr().err


def test_a_check_writer_that_cannot_begin_is_not_tried_again_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not for each row of a pass: pinning memory takes long. Later it is, as whatever failed may be mended."""
    clock, asked = [100.0], []

    def prepare(slots: int) -> None:
        asked.append(slots)
        if len(asked) == 1:
            raise RuntimeError("no pinned memory")

    writers = Writers(settings_for(tmp_path), {}, 1, prepare, now=lambda: clock[0])
    _, pieces = whole_pass({"p": [1, 2], "q": [3]})
    for piece in pieces:
        piece.ticket.check = True

    kept = writers.keeps(pieces)
    writers.fail_all(pieces, "nothing is kept")
    tried = len(asked)
    clock[0] += RETRY_S
    later = writers.keeps(pieces)
    writers.close()

    assert (kept, tried, later, len(asked)) == (False, 1, True, 2)
    assert capsys.readouterr().err.count("no pinned memory") == 1
