"""A power cut: what is not synced may be lost, in any order. The order of the recorded calls must bear that."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.crash import Trial, ground
from tests.faults.durability import breaches
from tests.faults.ground import CHANGES, Change
from tests.faults.syscalls import Call, calls, strace


@pytest.fixture(scope="module", params=CHANGES, ids=lambda change: change.name)
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    change: Change = request.param
    with ground() as made:
        yield Trial(made, change)


def found(trial: Trial, trace: list[Call]) -> list[str]:
    return list(breaches(trace, trial.ground.site, trial.ground.state))


def test_each_step_is_on_the_disk_before_the_next(trial: Trial) -> None:
    """Bytes before their rename, journal before the tree, tree before the record, record before the journal goes."""
    assert found(trial, trial.trace) == []


def test_the_undoing_is_as_careful(trial: Trial) -> None:
    """Also when it was interrupted at the record, where nearly everything must be brought back."""
    commit = [p for p in trial.points if p.name in ("rename", "unlink") and p.paths[-1].endswith("record.json")][-1]
    trial.kill(commit)
    log = trial.ground.folder / "trace"
    reply = trial.ground.call("patch-inspect", {"patches": ["p"]}, *strace(log))

    assert reply.recovered == ["undone"]
    assert found(trial, calls(log)) == []


def test_no_sync_can_be_left_out(trial: Trial) -> None:
    """The judge notices each one that is missing, but for those that only make sure of what others made durable."""
    syncs = [call for call in trial.trace if call.name == "fsync"]
    unnoticed = [one for one in syncs if not found(trial, [call for call in trial.trace if call is not one])]

    chain = [trial.ground.state.parent, *(trial.ground.state / part for part in ("", "patches", "patches/p"))]
    store = next(os.path.dirname(call.paths[-1]) for call in trial.trace if call.paths[-1:] and _is_journal(call))
    before = syncs[: next(n for n, one in enumerate(syncs) if one.paths[0] == store) + 1]
    made = [os.path.dirname(call.paths[0]) for call in trial.trace if call.name == "mkdir"]  # synced at the end again
    gone = [call.paths[0] for call in trial.trace if call.name == "rmdir"]
    sure = [*map(str, chain), *made, *gone]
    assert len(syncs) > 15
    assert [str(one) for one in unnoticed if one.paths[0] not in sure and one not in before] == []


def _is_journal(call: Call) -> bool:
    return call.name == "rename" and call.paths[-1].endswith("journal.json")
