"""``hsops doctor``: can the hosts be reached and used?"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome, error_lines

if TYPE_CHECKING:
    from hsops.core.inventory import HostSpec


def doctor(ctx: typer.Context) -> None:
    """Reach the default server's host, or those named, and show Python, SGLang and free dump space."""
    run(ctx, "doctor", _doctor)


def _doctor(session: Session) -> Outcome:
    """Every host is looked at, also after one that cannot be used; the first failure gives the exit code."""
    from hsops.cli.rollout import ask

    rows, refused = ask(session, {spec.name: partial(_hello, session, spec) for spec in session.hosts()})
    failed = list(refused.values())
    if failed and not rows and len(failed) == 1:
        raise failed[0]
    lines = [_line(name, facts) for name, facts in rows.items()]
    lines += [line for error in failed for line in error_lines(error)]
    errors = tuple(entry for error in failed for entry in error.as_json())
    return Outcome({"hosts": rows}, lines, failed[0].exit_code if failed else 0, errors)


def _hello(session: Session, spec: HostSpec) -> dict[str, Any]:
    return session.agent(spec).call("hello", dumps=spec.dumps)


def _line(name: str, facts: dict[str, Any]) -> str:
    from hsops.render.progress import size

    sglang, dumps = facts["sglang"]["version"] or "not found", facts["dumps"]
    free = f"{size(dumps['free'])} free for {dumps['path']}"
    return f"{name}  Python {facts['python']} · SGLang {sglang} · {free} · {facts['hostname']}"
