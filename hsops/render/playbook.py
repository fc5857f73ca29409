"""A playbook for people: each step as it starts, and a table at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hsops.core.units import clock, count, counted, size
from hsops.export.formats import SpecForge, Speculators
from hsops.playbook.load import Plan
from hsops.playbook.runner import Done, Report, StepStarted
from hsops.render.describe import describe
from hsops.verify.norms import AFTER, BEFORE


@describe.register
def _(event: StepStarted) -> Iterable[str]:
    yield f"[{event.number}/{event.total}] {event.step}"


def plan_lines(plan: Plan) -> Iterator[str]:
    """What would be done."""
    yield f"{plan.name}: {counted(len(plan.steps), 'step')}" + (
        f", then {plan.on_failure} on failure" if plan.on_failure else ""
    )
    for number, step in enumerate(plan.steps, 1):
        options = {name: value for name, value in step.model_dump(by_alias=True).items() if value not in (None, False)}
        yield f"  {number}  {step.command:<9} " + " · ".join(f"{name} {value}" for name, value in options.items())


def closing_lines(report: Report) -> Iterator[str]:
    """What a data set came to, once it is here: ``10,000 samples · 17.3 M tokens · 924 GiB · 0 errors · ...``.

    Nothing when a step failed: then its reason is the last word. The figures are those of the step that read all of it,
    so they say what is here, not what was sent.
    """
    brought, verified, exported = (_last(report, *names) for names in (("extract", "fetch"), ("verify",), ("export",)))
    fetched = brought.data.get("fetch", brought.data) if brought else {}
    if report.exit_code or "troubles" not in fetched:
        return
    seen = verified.data if verified and "samples" in verified.data else fetched
    faults = len(seen.get("findings", ())) + len(fetched["troubles"]) + len(fetched.get("failed", ()))
    figures = f"{counted(seen['samples'], 'sample')} · {count(seen['tokens'])} tokens · {size(seen['bytes'])}"
    faults += len(exported.data.get("left_out", ())) if exported else 0
    figures += f" · {counted(faults, 'error')}"
    if exported:
        yield f"{figures} · every file verified · in {exported.data['to']} for {exported.data['format']}"
    elif seen is fetched:
        yield f"{figures} · every file checked        next: hsops verify {fetched['to']}"
    else:
        yield f"{figures} · every file verified" + _export_of(seen)


def _export_of(verified: Mapping[str, Any]) -> str:
    """The export that these dumps can become, by the places that every one of them has; nothing when no trainer's."""
    places = [row["where"] for row in verified["norms"] if row["dumps"] == verified["samples"]]
    if AFTER in places and len(set(places) - {BEFORE, AFTER}) == SpecForge.needs.boundaries:
        trainer = SpecForge.needs.name
    elif BEFORE in places:
        trainer = Speculators.needs.name
    else:
        return ""
    return f"        next: hsops export --format {trainer} {verified['folder']} --to DIR"


def _last(report: Report, *commands: str) -> Done | None:
    return next((done for done in reversed(report.steps) if done.command in commands), None)


def report_lines(plan: Plan, report: Report) -> Iterator[str]:
    """What was done, step by step, and what was not."""
    for number, step in enumerate(plan.steps, 1):
        if number > len(report.steps):
            yield f"  {number}  {step.command:<9} not tried"
            continue
        done = report.steps[number - 1]
        mark = "ok    " if done.exit_code == 0 else f"exit {done.exit_code}"
        yield f"  {number}  {done.command:<9} {mark}  {clock(done.seconds):>7}  {done.summary}"
