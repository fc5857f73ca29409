"""Ask the host for a run of the plan: once. A launch that finds what it wants does nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hsops.core.deadline import QUICK, Deadline
from hsops.core.errors import AgentError, HsopsError, LockedError, UnhealthyError
from hsops.core.events import Emit, Note
from hsops.core.inventory import PatchSpec, ServerSpec
from hsops.core.nodes import absent, whole
from hsops.core.runs import Run, parse_run
from hsops.core.units import counted
from hsops.launch import needs
from hsops.launch.env_lint import Machine, wants_machine
from hsops.launch.flags import Parser, parse_options
from hsops.launch.meeting import met
from hsops.launch.plan import Deployed, Plan
from hsops.remote.agent import Agent
from hsops.remote.lock import Lock, explained, patient
from hsops.remote.runs import new_id, stop_run

START = Deadline(idle=60.0, total=60.0)  # sbatch alone has 15 s
_FIXES = {
    "no-slurm": "name the login node in servers.<name>.host, or the folder of sbatch in slurm.bin",
    "slurm-silent": "scontrol ping there; it may have been taken all the same: hsops status looks for it by its name",
    "slurm-refused": "correct what it names in servers.<name>.slurm",
    "no-sglang": "set hosts.<name>.python in inventory.yaml to the interpreter that has SGLang; check: hsops doctor",
    "model-missing": "correct servers.<name>.model in inventory.yaml, or copy the model there",
    "dump-dir-not-writable": "set hosts.<name>.dumps in inventory.yaml to a folder that this user can write",
    "dump-dir-taken": "end that server, or set hosts.<name>.dumps in inventory.yaml to a folder of its own",
    "changed-meanwhile": "somebody deployed in between; look: hsops audit; then again: hsops launch",
    "port-unusable": "correct servers.<name>.port or args.host in inventory.yaml",
}


@dataclass(frozen=True, slots=True)
class Started:
    """The run that is there now.

    Args:
        fresh: it was started just now; else it was found.
        warning: what the host could not do besides, such as noting it in the audit log; "" for nothing.
    """

    run: Run
    fresh: bool
    warning: str = ""


def inspect(agent: Agent, server: ServerSpec, patches: Sequence[PatchSpec], *, check: bool = False) -> Deployed:
    """What is deployed on the host for ``server``.

    Args:
        check: only look: what is not applied is told in ``lacks``, and instead of an identity.

    Raises:
        HsopsError: a patch of the server is not applied as the inventory says.
    """
    identities, lacks = dict[str, str](), list[HsopsError]()
    found = _inspect(agent, server, "source", patches)
    hook = ""
    for patch in patches:
        there = found if patch.place in ("source", "site") else _inspect(agent, server, patch.place, [patch])
        state = there["patches"][patch.name]
        if fault := _fault_of(patch, state):
            lacks.append(_not_deployed(agent, server, patch, fault))
        if lacks and not check:
            raise lacks[0]
        identities[patch.name] = state["state"] if fault else state["identity"]
        hook = f"{there['root']}/{state['identity']}" if patch.place == "hook" and not fault else hook
    told = tuple(entry for error in lacks for entry in error.as_json())
    return Deployed(str(found["sglang"]["version"] or ""), identities, _known(found["flags"]), hook, told)


def check_gone(agent: Agent, server: ServerSpec, patches: Sequence[PatchSpec]) -> None:
    """That none of ``patches`` acts on a ``server`` that is started without them. hs-dump's is inert then.

    Raises:
        HsopsError: the first that does: it was applied and not reverted.
    """
    for patch in (patch for patch in patches if patch.kind != "hs-dump"):
        place = "source" if patch.place in ("source", "site") else patch.place
        state = _inspect(agent, server, place, [patch])["patches"][patch.name]["state"]
        if state != "absent":
            raise HsopsError(
                f"patch {patch.name} is {state}",
                host=agent.host.name,
                why="a server without patches would run with it, as it lies in files that it reads",
                fix=f"hsops deploy --revert {patch.name}",
            )


def machine(agent: Agent, env: Mapping[str, str]) -> Machine:
    """What the host has that ``env`` speaks of; it is not asked when ``env`` speaks of nothing."""
    if not wants_machine(env):
        return Machine()
    told = agent.call("env-look", deadline=QUICK, wanted=list(env))
    names = frozenset(told["names"]) or None
    return Machine(tuple(told["interfaces"]), tuple(told["cards"]), names, told["kinds"])


def parser(agent: Agent, version: str) -> Parser:
    """The command line that the host's SGLang, of this ``version``, takes; where the agent fails to read it, why."""
    try:
        return parse_options(agent.call("args-look", deadline=QUICK)["options"], version)
    except AgentError as error:  # code that nobody foresaw: SGLang judges its flags itself, a little later
        return Parser(version=version, unread=error.message)


def _inspect(agent: Agent, server: ServerSpec, place: str, patches: Sequence[PatchSpec]) -> dict[str, Any]:
    names = [patch.name for patch in patches]
    try:
        return agent.call(
            "patch-inspect", deadline=patient(QUICK, agent), place=place, patches=names, flags=needs.ADDED
        )
    except AgentError as error:
        raise _refused(error, server.name, agent.host.name) from error


def ensure(
    locks: Sequence[Lock], plans: Sequence[Plan], known: Sequence[Run], *, replace: bool, healthy: bool, emit: Emit
) -> Started:
    """Start ``plans`` unless they run already; of a server over several hosts all nodes, or none.

    Args:
        locks: of the hosts, by node rank: held from the end of the old run to the start of the new one.
        plans: of the nodes; one for a server on one host.
        known: the server's runs, newest first.
        replace: stop a run of the server that is another, or is not healthy, and start anew.
        healthy: whether the run that is there answers.

    Raises:
        HsopsError: another run of this server is there, or the host refused.
    """
    plan, there = plans[0], next((run for run in known if run.alive), None)
    lacking = absent(there) if there else ()
    if there and there.spec_hash == plan.spec_hash and not lacking and (healthy or not replace):
        return Started(there, fresh=False)
    if there and lacking and not replace:
        raise _incomplete(there, lacking)
    if there and not replace:
        raise HsopsError(
            f"{plan.server} already runs, as {there.id}, with another command, environment or patch",
            host=plan.host,
            why="starting a second one would take its port and its GPUs",
            fix="hsops launch --replace stops it first; see both: hsops status --json, hsops launch --check",
        )
    for run in known:
        for lock in locks:
            if run.alive or run.left or (run.job and not run.job.over):
                _clear(lock, run, emit)
    return _all_or_none(locks, met([lock.agent for lock in locks], plans), emit)


def _all_or_none(locks: Sequence[Lock], plans: Sequence[Plan], emit: Emit) -> Started:
    """Start every node. What fails, or Ctrl-C, ends those of several that were begun: half a server helps nobody."""
    parts: dict[str, Run | None] = {}
    warnings, run = list[str](), new_id() if len(plans) > 1 else ""  # known before anybody can be asked what it is
    try:
        for lock, plan in zip(locks, plans, strict=True):
            parts[plan.host] = None
            started = _start(lock, dataclasses.replace(plan, run=run), keep=len(plans) > 1)
            parts[plan.host] = parse_run(started["run"])
            if warning := started["warning"]:
                emit(Note(f"the server is started, but {warning}", plan.host, "warn"))
                warnings.append(warning)
    except BaseException:
        if run:
            _take_back([lock for lock in locks if lock.agent.host.name in parts], run, emit)
        raise
    found = whole(parts)
    assert found
    return Started(found, fresh=True, warning="; ".join(warnings))


def _incomplete(run: Run, lacking: Sequence[str]) -> HsopsError:
    """A part alone waits for the others until SGLang gives up; another client may be about to start them."""
    there = ", ".join(part.host for part in run.parts if part.host not in lacking)
    return HsopsError(
        f"run {run.id} of {run.server} is incomplete: nothing of it is on {', '.join(lacking)}",
        host=lacking[0],
        why="its launch was cut off before it got there, or is just getting there, or its record there was removed",
        fix=f"hsops launch --replace --wait-healthy ends what there is of it on {there}, and starts anew",
    )


def _start(lock: Lock, plan: Plan, *, keep: bool) -> dict[str, Any]:
    try:
        return lock.call("run-start", what=f"server {plan.server}", keep=keep, deadline=START, **plan.request())
    except AgentError as error:
        raise _refused(error, plan.server, plan.host, plan.port) from error


def _take_back(begun: Sequence[Lock], run: str, emit: Emit) -> None:
    """End the parts of a run that were begun, also one whose start nobody has seen the end of."""
    for lock in begun:
        host = lock.agent.host.name
        try:
            stopped = stop_run(lock.agent, run, lock=lock, grace=0.0)
        except HsopsError as error:
            if isinstance(error, AgentError) and error.code == "no-such-run":
                continue
            said = f"its part of run {run} may be left there ({error.message}); hsops stop --run {run} ends it"
            emit(Note(said, host, "warn"))
            continue
        if stopped.ended:
            emit(Note(f"its part of run {run} was ended again: no node runs without the others", host))


def _known(flags: dict[str, bool]) -> frozenset[str] | None:
    """None when none was found: then it was not SGLang's command line that was read."""
    return frozenset(flag for flag, there in flags.items() if there) or None


def _clear(lock: Lock, run: Run, emit: Emit) -> None:
    """End a run that is in the way; what outlived an earlier server holds its GPUs and ports."""
    host = lock.agent.host.name
    lacking = host in absent(run)
    job = run.job and f"cancelling job {run.job.id}, which run {run.id} has left behind"
    left = job or f"ending what run {run.id} left behind: {counted(len(run.left), 'process')}"
    what = f"stopping run {run.id}" if run.alive else left
    if not lacking:
        emit(Note(f"{what} first", host))
    try:
        stopped = stop_run(lock.agent, run.id, grace=10.0 if run.alive else 0.0, lock=lock, keep=True)
    except AgentError as error:
        if lacking and error.code == "no-such-run":  # else another client has started it there since
            return
        raise
    if (now := stopped.run.job) and not now.over:
        why, fix = now.lingers
        raise UnhealthyError(f"run {run.id} has not ended: {now}", host=host, why=why, fix=fix)
    if stopped.left:
        pids = ", ".join(str(one["pid"]) for one in stopped.left)
        raise UnhealthyError(
            f"run {run.id} cannot be ended: {pids} outlived SIGKILL",
            host=host,
            why="a process in an uninterruptible sleep waits for the kernel, mostly for a GPU's driver",
            fix=f"ps -o pid,stat,wchan:32,cmd -p {pids.replace(' ', '')} shows where; it may need a reset",
        )


def _refused(error: AgentError, server: str, host: str, port: int | str = "") -> HsopsError:
    if isinstance(told := explained(error), LockedError):
        return told
    fix = _FIXES.get(error.code, error.fix)
    if error.code == "port-taken":
        pid = error.detail.get("pid")
        look = f"look at it: ps -fp {pid}" if pid else f"look who holds it: ss -ltnp 'sport = :{port}'"
        fix = f"{look}; or set servers.{server}.port: auto"
    if error.code == "already-running":
        fix = "hsops launch --wait-healthy picks it up"
    fix = fix.replace("servers.<name>", f"servers.{server}").replace("hosts.<name>", f"hosts.{host}")
    return AgentError(error.message, code=error.code, detail=error.detail, host=host, why=error.why, fix=fix)


def _options_differ(patch: PatchSpec, options: dict[str, Any]) -> str:
    """The options that were deployed otherwise than the inventory says now; "" when they agree."""
    if patch.kind != "hs-dump":  # what it was made of is judged by deploy, which reads it
        return ""
    wanted = {"boundaries": list(patch.boundaries), "final": patch.final}
    differ = {name: options[name] for name, value in wanted.items() if name in options and options[name] != value}
    return ", ".join(f"{name} {value}" for name, value in differ.items())


def _fault_of(patch: PatchSpec, state: Mapping[str, Any]) -> str:
    if state["state"] != "applied":
        return f"is {state['state']}"
    other = _options_differ(patch, state.get("options") or {})
    return f"was deployed with other options ({other})" if other else ""


def _not_deployed(agent: Agent, server: ServerSpec, patch: PatchSpec, what: str) -> HsopsError:
    lacks = ": without it the server would run and capture nothing" if patch.kind == "hs-dump" else ""
    return HsopsError(
        f"patch {patch.name} {what}",
        host=agent.host.name,
        why=f"server {server.name} needs it{lacks}",
        fix=f"hsops deploy --server {server.name}",
    )
