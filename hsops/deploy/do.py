"""A deploy on a host: look, apply, revert. The I/O around ``plan``."""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.core.deadline import Deadline
from hsops.core.errors import AgentError, RemoteError, StalePlanError
from hsops.deploy import facts as facts_
from hsops.deploy import hook
from hsops.deploy.facts import Facts
from hsops.deploy.parts import ScriptParts
from hsops.deploy.plan import MARKED, READ
from hsops.deploy.planned import Plan
from hsops.deploy.refusals import explained
from hsops.deploy.stale import StaleRun, judge, loaded_below
from hsops.payload.hsops_hs_dump.strategy import HOOK_FLAG
from hsops.remote import lock as lock_
from hsops.remote.agent import Agent, Question
from hsops.remote.lock import Lock

SHOWN = 5  # differences that a message names
LOOK = Deadline(idle=60.0, total=180.0)
CHANGE = Deadline(idle=60.0, total=None)  # it tells that it goes on, until it stands still for ten minutes


@dataclass(frozen=True, slots=True)
class Done:
    """What was changed: paths, and folders that stayed because something else lies in them; seconds it took.

    ``already``: nothing, because somebody else did the same at the same time. ``stale``: servers that run with what was
    there before.
    """

    changed: tuple[str, ...]
    left: tuple[str, ...]
    seconds: float
    already: bool = False
    stale: tuple[StaleRun, ...] = ()


def look(
    agent: Agent, patch: str, place: str = "source", read: Sequence[str] = READ, known: Iterable[bytes] = ()
) -> Facts:
    """What the host has in a place, with the bytes of ``read``. An interrupted earlier change is undone by this.

    Bytes that are ``known`` here, or of no use, do not travel: the host reads every file, and tells its sha256.
    """
    held = {hashlib.sha256(data).hexdigest(): data for data in known}
    verb, params = _looking(patch, place, read, list(held))
    try:
        found = agent.call(verb, deadline=lock_.patient(LOOK, agent), **params)
        for told in filter(None, found["files"].values()):
            if told["content_b64"] is None:
                told["content_b64"] = _text(held.get(told["sha256"], b""))
        return facts_.parse(found, patch, read)
    except AgentError as error:
        raise explained(error, agent) from None


def expect(agent: Agent, patch: str, known: Iterable[bytes]) -> None:
    """A patch beside SGLang will be looked at, elsewhere too, and who has it loaded: all of it in one round trip."""
    hashes = [hashlib.sha256(data).hexdigest() for data in known]
    agent.expect(
        _looking(patch, "source", READ, hashes), _looking(patch, hook.PLACE, (), []), loaded_below("source", "")
    )


def _looking(patch: str, place: str, read: Sequence[str], known: list[str]) -> Question:
    flags = [HOOK_FLAG] if place == hook.PLACE and read else []
    asked = {"patches": [patch], "place": place, "read": list(read), "flags": flags, "known": known}
    return "patch-inspect", {**asked, "marked": MARKED}


def look_recorded(agent: Agent, patch: str, place: str, read: Sequence[str] = ()) -> Facts:
    """As ``look``, and the record's files too, with what they were before the patch."""
    try:
        found = agent.call(
            "patch-inspect",
            deadline=lock_.patient(LOOK, agent),
            patches=[patch],
            place=place,
            read=list(read),
            originals=True,
        )
        return facts_.parse(found, patch, list(found["files"]))
    except AgentError as error:
        raise explained(error, agent) from None


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a script did to its copy: path -> (bytes, permission bits), None where it is gone; processes it left."""

    files: dict[str, tuple[bytes, int] | None]
    ended: int


def rehearse(lock: Lock, wanted: ScriptParts) -> Rehearsed:
    """Run a script on the host on a copy of its files; the real ones stay as they are.

    It holds the host's lock meanwhile, which may take minutes.

    Raises:
        AgentError: it failed, or touched what it does not name; its last lines of output are in the message.
    """
    spec = wanted.spec
    try:
        found = lock.call(
            "patch-rehearse",
            what=f"{wanted.name}, its script on a copy",
            deadline=CHANGE,
            patch=wanted.name,
            place=wanted.place,
            script_b64=_text(wanted.script),
            name=Path(wanted.label).name,
            files=list(spec.files),
            args=list(spec.args),
            env=dict(spec.env),
            timeout=spec.timeout,
        )
    except AgentError as error:
        raise explained(error, lock.agent) from None
    left = found["files"].items()
    files = {path: told and (base64.b64decode(told["content_b64"]), told["mode"]) for path, told in left}
    return Rehearsed(files, found["ended"])


def look_hook(agent: Agent, patch: str, wanted: Sequence[str] = ()) -> Facts:
    """What the host has in hsops' own folder: the files of ``wanted`` and those that are recorded."""
    recorded = look(agent, patch, hook.PLACE, ()).recorded
    return look(agent, patch, hook.PLACE, sorted({*recorded.files, *wanted}))


def size(plan: Plan) -> int:
    """Bytes of the request that carries a plan out, about."""
    return sum(len(data) * 4 // 3 for edit in plan.edits for data in (edit.content, edit.original) if data)


def apply(
    lock: Lock, plan: Plan, *, keep: bool = False, coming: int = 0, exact: bool = False, ours: Iterable[str] = ()
) -> Done:
    """Carry out a plan: all of it or nothing.

    Args:
        lock: of the host; ``keep`` it for the command's next change there, whose ``size`` is ``coming``.
        exact: refuse also when somebody did the same since the plan was made.
        ours: the files (``Seen.real``) that this command changed meanwhile itself: of them the plan may have seen older
            ones.

    Raises:
        AgentError: the host refused; ``code`` says why. Nothing was changed.
        LockedError: somebody else changes it, or took the lock away.
    """
    edits = [
        {
            "path": edit.path,
            "content_b64": _text(edit.content),
            "mode": edit.mode,
            "exact": edit.exact,
            "before_sha256": edit.before,
            "original_b64": _text(edit.original),
        }
        for edit in plan.edits
    ]
    return _change(
        lock,
        "patch-apply",
        f"{plan.patch} {plan.identity}",
        keep=keep,
        coming=coming,
        place=plan.place,
        patch=plan.patch,
        identity=plan.identity,
        options=plan.options,
        edits=edits,
        expect=plan.seen.expect(ours),
        exact=exact,
    )


def revert(lock: Lock, plan: Plan, *, force: bool = False, keep: bool = False, ours: Iterable[str] = ()) -> Done:
    """Carry out a plan to revert: bring back what was there before the patch, byte for byte. Arguments: as ``apply``.

    Raises:
        AgentError: as ``apply``.
    """
    return _change(
        lock,
        "patch-revert",
        f"{plan.patch} {plan.identity}, revert",
        keep=keep,
        place=plan.place,
        patch=plan.patch,
        force=force,
        expect=plan.seen.expect(ours),
    )


def expect_check(agent: Agent, plan: Plan) -> None:
    """It will be asked who has the plan's files loaded, then ``check``: both in one round trip."""
    agent.expect(loaded_below(plan.place, plan.seen.root), _checking(plan))


def check(agent: Agent, plan: Plan) -> None:
    """The host would not refuse the plan for its paths: what lies in the way, links, owners, rights.

    Raises:
        AgentError: as ``apply``.
    """
    verb, params = _checking(plan)
    try:
        agent.call(verb, deadline=lock_.patient(LOOK, agent), **params)
    except AgentError as error:
        raise explained(error, agent) from None


def _checking(plan: Plan) -> Question:
    edits = [
        {
            "path": edit.path,
            "content_b64": None if edit.content is None else "",
            "mode": 0,
            "before_sha256": edit.before,
        }
        for edit in plan.edits
    ]
    changes = [action.path for action in plan.actions]
    return "patch-check", {"patch": plan.patch, "place": plan.place, "edits": edits, "changes": changes}


def check_fresh(agent: Agent, plan: Plan) -> None:
    """The host is the one that the plan was made for, and nothing changed there since.

    Raises:
        StalePlanError: it is not, or something did.
    """
    now = look(agent, plan.patch, plan.place, plan.seen.read).seen
    if another := plan.seen.another(now):
        raise StalePlanError(
            f"the plan is of another host: {'; '.join(another)}",
            host=agent.host.name,
            why="nothing was changed",
            fix="correct hosts.<name> in inventory.yaml, or make a new plan: hsops deploy --check --out FILE",
        )
    if changed := plan.seen.changed(now):
        raise StalePlanError(
            f"the host changed since the plan was made: {'; '.join(changed[:SHOWN])}",
            host=agent.host.name,
            why=(f"and {len(changed) - SHOWN} more; " if len(changed) > SHOWN else "") + "nothing was changed",
            fix="look again: hsops deploy --check --out FILE",
        )


def _change(lock: Lock, verb: str, what: str, **params: Any) -> Done:
    started = time.monotonic()
    try:
        result = lock.call(verb, what=what, deadline=CHANGE, **params)
    except AgentError as error:
        raise explained(error, lock.agent) from None
    except RemoteError as error:  # it was ended half-way, perhaps
        error.fix = error.fix or "hsops deploy --status: what is half done there is undone or completed first"
        raise
    seconds, wanted = time.monotonic() - started, str(params.get("identity", ""))  # a revert wants none
    since = math.inf if result["changed"] else result.get("since", 0.0)
    return Done(
        tuple(result["changed"]),
        tuple(result.get("left", ())),
        seconds,
        result.get("already", False),
        judge(result.get("runs", ()), str(params["patch"]), wanted, since),
    )


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()
