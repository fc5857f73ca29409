"""``hsops run``: ordered steps of the other commands."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hsops.cli import deploy, diagnose, export, extract, fetch, launch, stop, verify, wiring
from hsops.core.errors import UsageError
from hsops.render.console import Outcome, error_lines

if TYPE_CHECKING:
    from hsops.playbook.load import Plan
    from hsops.playbook.model import Export, Extract
    from hsops.playbook.runner import Action


def run(
    ctx: typer.Context,
    playbook: Annotated[str, typer.Argument(metavar="PLAYBOOK", help="A file such as playbooks/extract.yaml.")],
    *,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable of the playbook; repeatable.")
    ] = None,
    server: Annotated[str, typer.Option("--server", "-s", metavar="NAME", help="Instead of the playbook's.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only show what would be done.")] = False,
) -> None:
    """Do a playbook's steps in order; a rerun skips what is done; a failure is diagnosed."""
    wiring.run(ctx, "run", lambda session: play(session, Path(playbook), values or [], server or None, check=check))


def play(session: wiring.Session, path: Path, values: list[str], server: str | None, *, check: bool) -> Outcome:
    """The command's body."""
    from hsops.playbook import runner
    from hsops.playbook.load import load
    from hsops.render import playbook as render

    plan = load(path.expanduser(), _variables(values))
    name = session.server(server or plan.server).name
    if check:
        steps = [{"command": step.command, **step.model_dump(by_alias=True)} for step in plan.steps]
        return Outcome({"playbook": plan.name, "server": name, "steps": steps}, render.plan_lines(plan))
    _read_prompts(plan)
    report = runner.run(plan, _actions(session, name), session.console.emit)
    data: dict[str, Any] = {"playbook": plan.name, "server": name, "steps": [asdict(done) for done in report.steps]}
    if report.diagnosis:
        data["diagnosis"] = asdict(report.diagnosis)
    errors = tuple(report.error.as_json()) if report.error else ()
    lines = [*render.report_lines(plan, report), *(error_lines(report.error) if report.error else ())]
    lines += render.closing_lines(report)
    return Outcome(data, lines, report.exit_code, errors)


def _read_prompts(plan: Plan) -> None:
    """A fault in a prompts file is told now, not after the minutes or hours that a server takes to come up."""
    from hsops.core.prompt_files import read_prompts
    from hsops.playbook.model import Extract

    for step in plan.steps:
        if isinstance(step, Extract):
            read_prompts(step.prompts)


def _actions(session: wiring.Session, server: str) -> dict[str, Action]:
    """Each step is the body of the command of the same name."""
    from hsops.playbook import model

    def on(kind: Any, do: Any) -> Action:
        def act(step: model.Step) -> Outcome:
            assert isinstance(step, kind)
            outcome: Outcome = do(step)
            return outcome

        return act

    return {
        "deploy": on(model.Deploy, lambda _: deploy.put(session, deploy.Wish(server=server))),
        "launch": on(
            model.Launch,
            lambda s: launch.bring_up(
                session,
                launch.Wish(server, False, True, s.replace, s.timeout, s.stall_after, s.stop_on_failure),
            ),
        ),
        "extract": on(
            model.Extract,
            lambda s: extract.drive(session, _extract(s, server)),
        ),
        "fetch": on(
            model.Fetch,
            lambda s: fetch.pull(session, server, fetch.Options(s.to, str(s.streams or fetch.STREAMS), evict=s.evict)),
        ),
        "verify": on(model.Verify, lambda s: verify.for_playbook(session, server, s.dir, s.prompts)),
        "export": on(model.Export, lambda s: export.make(session, _export(s))),
        "stop": on(model.Stop, lambda _: stop.end(session, server)),
        "diagnose": on(model.Diagnose, lambda _: diagnose.live(session, server)),
    }


def _extract(step: Extract, server: str) -> extract.Wish:
    return extract.Wish(
        step.prompts,
        (server,),
        concurrency=step.concurrency or extract.CONCURRENCY,
        relaunch=step.relaunch or 0,
        drain=step.drain or "",
        tokenized=Path(step.tokenized).expanduser() if step.tokenized else None,
    )


def _export(step: Export) -> export.Wish:
    return export.Wish(
        step.dir,
        step.to,
        step.format,
        step.prompts or "",
        step.mask,
        step.engine or "",
        step.trunk or "",
        step.copy_,
        step.partial,
    )


def _variables(values: list[str]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise UsageError(f"--set {name!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}
