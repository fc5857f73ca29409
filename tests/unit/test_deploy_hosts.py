"""What becomes of several hosts, told in a table, on a board and as an exit code."""

from __future__ import annotations

import pytest

from hsops.core.errors import PartialError, RemoteError, UnreachableError
from hsops.deploy.hosts import HostOutcome, HostsBoard, Word, exit_code, unfinished
from hsops.render.describe import describe
from hsops.render.hosts import table


def outcome(host: str, word: Word) -> HostOutcome:
    """One host; a failed one could not be reached."""
    error = UnreachableError("down", host=host, fix="plug it in") if word == "failed" else None
    return HostOutcome(host, word, "absent", "applied" if word == "changed" else "absent", 0.7, error)


@pytest.mark.parametrize(
    "words,code",
    [
        (["changed", "unchanged"], 0),
        (["changed", "failed"], 3),
        (["changed", "failed", "not-begun"], 3),
        (["unchanged", "failed"], 3),
        (["failed", "not-begun"], 5),
        (["unchanged", "failed", "not-begun"], 5),
        (["failed", "failed"], 5),
    ],
)
def test_the_exit_code_tells_all_some_or_none(words: list[Word], code: int) -> None:
    """What was done already counts as done, unless the first to change failed."""
    outcomes = [outcome(str(i), word) for i, word in enumerate(words)]

    assert exit_code(outcomes) == code
    assert exit_code(outcomes, interrupted=True) == 130


def test_a_first_host_that_is_half_done_is_partial() -> None:
    """Its own error says so."""
    half = HostOutcome("a", "failed", "absent", "x applied, y absent", 1.0, PartialError("half"))

    assert exit_code([half, outcome("b", "not-begun")]) == PartialError.exit_code


def test_the_table_names_each_host_its_error_and_what_to_type() -> None:
    """In that order."""
    outcomes = [outcome("rtx-one", "failed"), outcome("b", "not-begun"), outcome("c", "unchanged")]

    lines = list(table(outcomes, "hsops deploy " + " ".join(f"--host {host}" for host in unfinished(outcomes))))

    assert lines == [
        "host     before -> after  seconds",
        "rtx-one  absent               0.7  FAILED, see below",
        "b        absent               0.7  not begun",
        "c        absent               0.7  nothing to do",
        "rtx-one: down",
        "  fix: plug it in",
        "rtx-one goes first and failed: the hosts after it were not touched",
        "1 of 3 hosts are as they should be   the rest: hsops deploy --host rtx-one --host b",
    ]


def test_the_board_fits_a_terminal() -> None:
    """However many hosts there are: counts, some of those under way, some of those that failed."""
    many = tuple((f"h{i}", 3.2) for i in range(100))
    lines = list(describe(HostsBoard("changing", 200, 70, many, (("bad", str(RemoteError("no"))),))))

    assert lines[:2] == ["changing 200 hosts · 70 done", "  h0               3 s"]
    assert lines[-1] == "  bad              failed: no" and len(lines) < 24
