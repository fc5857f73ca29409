"""The agent is killed, or the kernel says no, at every system call of apply and revert: the tree is old or new.

``make test`` tries a part of the points, ``make crash`` every one, and prints what they ended in.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.faults.crash import ALL, Trial, ground, spread
from tests.faults.ground import CHANGES, Change
from tests.faults.syscalls import calls, points, strace

ERRORS = ("ENOSPC", "EIO", "EACCES")
WORKERS = 2 if ALL else 1

pytestmark = pytest.mark.timeout(3600 if ALL else 300)


@pytest.fixture(scope="module", params=CHANGES, ids=lambda change: change.name)
def trials(request: pytest.FixtureRequest) -> Iterator[list[Trial]]:
    """The same change on several grounds, to be tried side by side."""
    change: Change = request.param
    with ExitStack() as stack:
        yield [Trial(stack.enter_context(ground()), change) for _ in range(WORKERS)]


@pytest.fixture
def told(trials: list[Trial], request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints what the trials ended in."""
    for trial in trials:
        trial.seen.clear()
        trial.codes.clear()
    yield
    seen = sum((trial.seen for trial in trials), Counter[str]())
    codes = sum((trial.codes for trial in trials), Counter[str]())
    print(f"\n{request.node.name}: {len(trials[0].points)} points, {sum(seen.values())} tried:")
    print(f"  {dict(sorted(seen.items()))} {dict(sorted(codes.items())) or ''}")


@pytest.mark.usefixtures("told")
def test_killed_at_every_system_call(trials: list[Trial]) -> None:
    """Before each call on a file, and before the reply and the end: all the states that a kill can leave."""
    spread(trials, len(trials[0].points), 24, lambda trial, index: trial.kill_at(trial.points[index]))

    assert any("undone" in verdict for trial in trials for verdict in trial.seen)


@pytest.mark.usefixtures("told")
def test_every_system_call_fails(trials: list[Trial]) -> None:
    """For want of room, of a working disk, of a right: a clear refusal and nothing changed, or it did not matter."""

    def fail(trial: Trial, index: int) -> None:
        for error in ERRORS if ALL else ERRORS[index % 3 : index % 3 + 1]:
            trial.fail_at(trial.points[index], error)

    spread(trials, len(trials[0].points) - 2, 48, fail)  # without the reply and the end


@pytest.mark.usefixtures("told")
def test_killed_at_random_moments(trials: list[Trial]) -> None:
    """Whatever the moment, mostly while it writes: 100 of each change for ``make crash``."""
    dice = random.Random(20261130)
    moments = [dice.uniform(-0.45, 1) ** 3 for _ in range(100)]
    for trial in trials:
        trial.measure()

    spread(trials, len(moments), 50, lambda trial, index: trial.kill_after(moments[index]))


@pytest.mark.usefixtures("told")
def test_killed_while_it_repairs(trials: list[Trial]) -> None:
    """The next command is killed at every call of its own, and the one after it still puts everything right."""
    for trial in trials:
        renames = [point for point in trial.points if point.name == "rename" and "site-packages" in point.text]
        trial.kill(renames[len(renames) // 2])
        trial.ground.save("half")
        log = trial.ground.folder / "trace"
        trial.ground.call("patch-inspect", {"patches": ["p"]}, *strace(log))
        trial.repairing = points(calls(log), trial.ground.site, trial.ground.state)
    assert len(trials[0].repairing) > 30

    spread(trials, len(trials[0].repairing), 24, Trial.kill_repair)


@pytest.mark.usefixtures("told")
def test_a_disk_that_stays_broken(trials: list[Trial]) -> None:
    """Undoing fails too: it says both, keeps the journal, and the next command undoes the rest."""
    trial = trials[0]
    renames = [point for point in trial.points if point.name == "rename" and "site-packages" in point.text]
    trial.again()
    fault = f"rename,unlink:error=EIO:when={renames[-1].nth}+"
    reply = trial.ground.call(trial.change.verb, trial.params, *strace(trial.ground.folder / "trace", fault))

    assert reply.error.get("code") == "unfinished" and "undoing it failed too" in reply.error["message"], reply
    assert trial.judge("a broken disk", "old") == "old"
    assert any("undone" in verdict for verdict in trial.seen)
