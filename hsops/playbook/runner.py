"""Walks a plan. Every step is idempotent, so a rerun starts at the top and what is done says so in a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hsops.core.errors import HsopsError
from hsops.core.events import Emit, Event
from hsops.playbook.load import Plan
from hsops.playbook.model import Diagnose, Step


@dataclass(frozen=True, slots=True)
class StepStarted(Event):
    """A step begins: ``number`` of ``total``, from 1."""

    number: int
    total: int
    command: str


@dataclass(frozen=True, slots=True)
class Done:
    """One step that was run.

    Args:
        command: its command.
        exit_code: 0 when it did what it should.
        seconds: how long it took.
        summary: its result in one line.
    """

    command: str
    exit_code: int
    seconds: float
    summary: str


Action = Callable[[Step], tuple[int, str]]  # does the step; its exit code and one line


@dataclass(frozen=True, slots=True)
class Report:
    """What a playbook did. ``error`` is the first step's failure, when it raised one."""

    steps: tuple[Done, ...]
    error: HsopsError | None = None

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
        started, failure = now(), None
        try:
            code, summary = actions[step.command](step)
        except HsopsError as error:
            code, summary, failure = error.exit_code, error.message, error
        finished.append(Done(step.command, code, now() - started, summary))
        if code:
            # launch has already diagnosed its own stall; everything else is asked here
            if plan.on_failure == "diagnose" and step.command not in ("launch", "deploy"):
                actions["diagnose"](Diagnose())
            return Report(tuple(finished), failure)
    return Report(tuple(finished))
