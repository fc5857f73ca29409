"""Walks a plan. Every step is idempotent, so a rerun starts at the top and what is done says so in a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hsops.core.errors import HsopsError
from hsops.core.events import Emit, Event, Note
from hsops.playbook.load import Plan
from hsops.playbook.model import Diagnose, Step

INTERRUPTED, UNHEALTHY, FAULTY_FILE = 130, 7, 4


@dataclass(frozen=True, slots=True)
class StepStarted(Event):
    """A step begins: ``number`` of ``total``, from 1."""

    number: int
    total: int
    step: str


@dataclass(frozen=True, slots=True)
class Done:
    """One step that was run.

    Args:
        command: its command.
        exit_code: 0 when it did what it should.
        seconds: how long it took.
        summary: its result in one line.
        data: its result as the command's ``--json`` gives it.
    """

    command: str
    exit_code: int
    seconds: float
    summary: str
    data: dict[str, Any]


class Result(Protocol):
    """What an action returns; a command's ``Outcome`` is one."""

    @property
    def exit_code(self) -> int: ...

    @property
    def lines(self) -> Iterable[str]: ...

    @property
    def data(self) -> dict[str, Any]: ...

    @property
    def summary(self) -> str: ...


Action = Callable[[Step], Result]


@dataclass(frozen=True, slots=True)
class Report:
    """What a playbook did. ``error`` is the failed step's, when it raised one; ``diagnosis`` of the server after it."""

    steps: tuple[Done, ...]
    error: HsopsError | None = None
    diagnosis: Done | None = None

    @property
    def exit_code(self) -> int:
        """Of the step that failed; 0 when none did."""
        return next((done.exit_code for done in self.steps if done.exit_code), 0)


def run(plan: Plan, actions: Mapping[str, Action], emit: Emit, now: Callable[[], float] = time.monotonic) -> Report:
    """Do the steps in order; stop at the first that fails and, when the playbook asks for it, diagnose.

    Args:
        plan: what to do.
        actions: how, by command.
        emit: told when a step starts.
        now: a monotonic clock.
    """
    finished: list[Done] = []
    for number, step in enumerate(plan.steps, 1):
        emit(StepStarted(number, len(plan.steps), step.command))
        done, error = _do(step, actions, emit, now)
        finished.append(done)
        if done.exit_code:
            wanted = plan.on_failure == "diagnose" and _is_worth_a_look(done)
            diagnosis = _do(Diagnose(), actions, emit, now)[0] if wanted else None
            return Report(tuple(finished), error, diagnosis)
    return Report(tuple(finished))


def _is_worth_a_look(done: Done) -> bool:
    """Whether the server may be to blame. There is none before launch, which looks into its own stalls."""
    if done.command == "launch":
        return done.exit_code == UNHEALTHY and not done.data.get("verdict")
    return done.command != "deploy" and done.exit_code not in (INTERRUPTED, FAULTY_FILE)


def _do(
    step: Step, actions: Mapping[str, Action], emit: Emit, now: Callable[[], float]
) -> tuple[Done, HsopsError | None]:
    started = now()
    try:
        result = actions[step.command](step)
        lines, code, data, error = list(result.lines), result.exit_code, result.data, None
        summary = result.summary
    except HsopsError as failure:
        lines, code, data, error = [failure.message], failure.exit_code, {"errors": failure.as_json()}, failure
        summary = ""
    if not error:
        for line in lines:
            emit(Note(line))
    return Done(step.command, code, now() - started, summary or (lines[-1] if lines else ""), data), error
