"""``hsops doctor``: can each host be reached and used?."""

from __future__ import annotations

from typing import Any

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome


def doctor(ctx: typer.Context) -> None:
    """Reach each host and show its Python, SGLang and free dump space."""
    run(ctx, "doctor", _doctor)


def _doctor(session: Session) -> Outcome:
    rows: dict[str, Any] = {}
    for spec in session.hosts():
        rows[spec.name] = session.agent(spec).call("hello", dumps=spec.dumps)
    lines = [
        f"{name}  Python {facts['python']} · SGLang {facts['sglang']['version'] or 'not found'} · {facts['hostname']}"
        for name, facts in rows.items()
    ]
    return Outcome({"hosts": rows}, lines)
