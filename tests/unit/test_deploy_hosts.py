"""What becomes of several hosts, told in a table, on a board and as an exit code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hsops.cli import deploy, gatekeeper
from hsops.core.errors import PartialError, RemoteError, StalePlanError, UnreachableError
from hsops.deploy.hosts import HostOutcome, HostsBoard, Word, exit_code, unfinished
from hsops.deploy.planned import Action, Edit, Plan
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


def row(host: str, patch: str, *, needed: bool = True, done: bool = False) -> Any:
    return SimpleNamespace(host=host, plan=SimpleNamespace(patch=patch, needed=needed), done=done or None)


ROWS = [
    row("a", "x", done=True),
    row("a", "y", needed=False),
    row("b", "x"),
    row("b", "y", needed=False),
    row("c", "z"),
]


@pytest.mark.parametrize(
    "wish,hosts,said",
    [
        (deploy.Wish(plan="p.json"), "", "hsops deploy x --host b && hsops deploy z --host c"),
        (deploy.Wish(plan="p.json", revert=True, force=True), "", "hsops deploy x --revert --force --host b && hsops "
         "deploy z --revert --force --host c"),
        (deploy.Wish(("x", "z")), "abc", "hsops deploy x z --host b --host c"),
        (deploy.Wish(), "abc", "hsops deploy --host b --host c"),
        (deploy.Wish(server="s"), "abc", "hsops deploy x --host b && hsops deploy z --host c"),
    ],
)  # fmt: skip
def test_the_command_that_does_the_rest_names_what_is_left(wish: deploy.Wish, hosts: str, said: str) -> None:
    """A plan's patches are those of its file, not those that the inventory has for a host."""
    session: Any = SimpleNamespace(options=SimpleNamespace(host=list(hosts), group=[]))

    assert deploy._again(session, wish, ROWS, ["b", "c"]) == said


def planned(base: str, content: str) -> Any:
    """A script's row: it made ``content`` of ``base``."""
    edit = Edit("m.py", content.encode(), base, None)
    action = Action("update", "m.py", base.encode(), content.encode(), f"from {base}")
    return SimpleNamespace(
        host="h", plan=Plan("p", "1", {}, "absent", "", "0.5.9", (action,), (edit,) if content else (), kind="script")
    )


@pytest.mark.parametrize(
    "shown,made,said",
    [
        (planned("1", "x"), planned("2", "x"), ""),
        (planned("1", "x"), planned("1", "y"), "does something else here than on gate"),
        (planned("1", ""), planned("1", "y"), "what p does was not shown: gate"),
    ],
)
def test_another_host_may_come_from_elsewhere_to_what_was_shown(
    shown: Any, made: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there in the end counts; of what was not shown nothing else is said."""
    monkeypatch.setattr(gatekeeper, "_tried", lambda *_: [made])
    session: Any = SimpleNamespace(options=SimpleNamespace(yes=False))
    looked: Any = SimpleNamespace(gate="gate", rows={"gate": [shown]})
    waiting: Any = SimpleNamespace(host="h", plan=SimpleNamespace(untried=True))

    if not said:
        assert gatekeeper.tried(session, deploy.Wish(), looked, [waiting]) == [made]
        return
    with pytest.raises(StalePlanError, match=said):
        gatekeeper.tried(session, deploy.Wish(), looked, [waiting])
