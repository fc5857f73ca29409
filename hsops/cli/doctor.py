"""``hsops doctor``: can the hosts be reached, and is there anything that a launch would trip over?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import typer

from hsops.cli.wiring import Session, run
from hsops.render.console import Outcome, error_lines

if TYPE_CHECKING:
    from hsops.core.inventory import HostSpec, PatchSpec, ServerSpec
    from hsops.doctor.findings import Facts, Finding, Wanted


def doctor(ctx: typer.Context) -> None:
    """Look at the default server's host, or those named, before a launch: what is wrong, why it matters, what to do.

    A blocker gives exit code 1. Nothing is changed.
    """
    run(ctx, "doctor", _doctor)


def _doctor(session: Session) -> Outcome:
    """Every host is looked at, also after one that cannot be used; the first failure gives the exit code."""
    from hsops.cli.rollout import ask
    from hsops.doctor import client
    from hsops.doctor.examine import judge
    from hsops.render import doctor as render

    looked, refused = ask(session, {spec.name: partial(_look, session, spec) for spec in session.hosts()})
    failed = list(refused.values())
    if failed and not looked and len(failed) == 1:
        raise failed[0]
    here, lines = list(client.judge(client.facts())), list[str]()
    found, data = list(here), dict[str, object]()
    for name, (facts, seconds) in looked.items():
        own = judge(facts)
        found += own
        lines += [render.host_line(name, facts, seconds), *render.finding_lines(name, own)]
        data[name] = {**facts.look("hello"), "dumps": facts.look(f"folder {facts.dumps}"), "facts": facts.raw,
                      "round_trip_s": round(seconds, 4), "findings": [asdict(one) for one in own]}  # fmt: skip
    together = {spec.name: _together(session, spec, looked) for spec in session.inventory.servers.values()}
    for name, own in together.items():
        found += own
        lines += render.finding_lines(name, own)
    lines += [*render.finding_lines("here", here), *(line for error in failed for line in error_lines(error))]
    errors = tuple(entry for error in failed for entry in error.as_json())
    blocked = any(one.level == "blocker" for one in found)
    lines.append(render.closing(found))
    shown = {"hosts": data, "client": [asdict(one) for one in here]}
    shown["servers"] = {name: [asdict(one) for one in own] for name, own in together.items() if own}
    return Outcome(shown, lines, failed[0].exit_code if failed else int(blocked), errors)


def _together(session: Session, spec: ServerSpec, looked: Mapping[str, tuple[Facts, float]]) -> list[Finding]:
    """Whether the hosts of a server over several fit together and reach each other, where all were looked at."""
    from hsops.core.errors import HsopsError
    from hsops.doctor.findings import Finding
    from hsops.doctor.rules_nodes import unlike
    from hsops.launch import spanning
    from hsops.launch.env_lint import interface_faults
    from hsops.launch.meeting import Server, way
    from hsops.launch.start import machine

    if not spec.nodes or not {*spec.hosts} <= {*looked}:
        return []
    agents = [session.agent(host) for host in spec.hosts]
    found = list(unlike(spec.name, {host: looked[host][0] for host in spec.hosts}))
    for agent in agents:
        for name, said in interface_faults(spec.env, machine(agent, spec.env)):
            found.append(
                Finding("blocker", "server", f"{agent.host.name}: {name}: {said}", "", f"servers.{spec.name}.env")
            )
    try:
        way(agents, Server(spec.name, spec.hosts, spec.env, str(spec.args.get(spanning.FLAG, ""))))
    except HsopsError as error:
        found.append(Finding("blocker", "server", error.message, error.why, error.fix))
    return found


def _look(session: Session, spec: HostSpec) -> tuple[Facts, float]:
    from hsops.doctor.examine import look

    return look(session.agent(spec), _wanted(session, spec), spec.dumps)


def _wanted(session: Session, spec: HostSpec) -> list[Wanted]:
    """The servers that are to run on a host."""
    from hsops.core.inventory import HsDumpPatch
    from hsops.doctor.findings import Wanted

    def wanted(server: ServerSpec) -> list[PatchSpec]:
        return [session.inventory.patches[name] for name in server.patches]

    return [
        Wanted(
            name=one.name,
            model=one.model,
            tp=-(-one.tp // len(one.hosts)),
            port=one.port if isinstance(one.port, int) and one.executor == "host" else None,
            capture=next((patch.method for patch in wanted(one) if isinstance(patch, HsDumpPatch)), ""),
            job=one if one.executor == "slurm" else None,
        )
        for one in session.inventory.servers.values()
        if spec.name in one.hosts
    ]
