"""A playbook for people: each step as it starts, and a table at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hsops.playbook.load import Plan
from hsops.playbook.runner import Report, StepStarted
from hsops.render.describe import describe
from hsops.render.progress import clock


@describe.register
def _(event: StepStarted) -> Iterable[str]:
    yield f"[{event.number}/{event.total}] {event.step}"


def plan_lines(plan: Plan) -> Iterator[str]:
    """What would be done."""
    yield f"{plan.name}: {len(plan.steps)} steps" + (f", then {plan.on_failure} on failure" if plan.on_failure else "")
    for number, step in enumerate(plan.steps, 1):
        options = {name: value for name, value in step.model_dump().items() if value not in (None, False)}
        yield f"  {number}  {step.command:<9} " + " · ".join(f"{name} {value}" for name, value in options.items())


def report_lines(plan: Plan, report: Report) -> Iterator[str]:
    """What was done, step by step, and what was not."""
    for number, step in enumerate(plan.steps, 1):
        if number > len(report.steps):
            yield f"  {number}  {step.command:<9} not tried"
            continue
        done = report.steps[number - 1]
        mark = "ok    " if done.exit_code == 0 else f"exit {done.exit_code}"
        yield f"  {number}  {done.command:<9} {mark}  {clock(done.seconds):>7}  {done.summary}"
