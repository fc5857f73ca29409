"""What a deploy of hs-dump would do to one host. Pure: facts and the wanted patch in, a plan out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hsops.core.capturable import not_patchable, refusal
from hsops.core.errors import ForeignError, RemoteError
from hsops.core.versions import within
from hsops.deploy.facts import Facts
from hsops.deploy.payload import MARK, PACKAGE, Payload, has_stanza, with_stanza, without_stanza
from hsops.deploy.planned import Action, Edit, Plan, recorded_state, way_back
from hsops.payload.hsops_hs_dump.strategy import LAST, REGISTRY_FILE

# where the stanza stood up to hsops 0.1: a host may still have it there
OLD_MODULE = "sglang/srt/models/deepseek_v2.py"
MARKED = {OLD_MODULE: MARK}  # of a hundred thousand bytes that all hosts have, none is of use without a stanza
READ = (REGISTRY_FILE, OLD_MODULE, f"{PACKAGE}/*.py", f"{PACKAGE}/*.json")


def plan(facts: Facts, wanted: Payload, *, force: bool = False) -> Plan:
    """How to get ``wanted`` onto the host.

    Args:
        facts: the host, with the files of ``READ``.
        wanted: the patch.
        force: replace what somebody else edited.

    Raises:
        UnsupportedError: the installed SGLang is not one that can be patched.
        ForeignError: somebody edited the files, or another patch has them, and ``force`` is not given.
        RemoteError: the files would have to change and cannot.
    """
    state, reason = state_of(facts, wanted.identity)
    warnings = _check_version(facts) if wanted.place == "source" else []
    edits = tuple(_edits(facts, wanted))
    actions = tuple(_actions(facts, edits)) if state != "applied" else ()
    if state != "applied":
        _check_others(facts, wanted)
        if state == "foreign" and not force:
            raise ForeignError(
                reason, why="a deploy would overwrite that", fix="look: --diff --force --check; do: --force"
            )
        if facts.unwritable:
            raise RemoteError(facts.unwritable, why="the patch lives beside SGLang", fix=_UNWRITABLE)
    options = dict(wanted.options)
    return Plan(
        wanted.name,
        wanted.identity,
        options,
        state,
        reason,
        facts.version,
        actions,
        edits,
        tuple(warnings),
        wanted.place,
        facts.seen,
    )


def plan_revert(facts: Facts, name: str, *, force: bool = False, place: str = "source") -> Plan:
    """How to get back to what was there before.

    Raises:
        ForeignError: somebody edited the files since, or there is no record of what was there, and ``force`` is not
            given.
    """
    recorded = facts.recorded
    state, reason = state_of(facts, recorded.identity)
    if not recorded.files and state == "foreign":
        raise ForeignError(reason, why="the host has no record of what was there before", fix=_ADOPT)
    actions = [
        _taken_away(path, current.content)
        for path, told in recorded.files.items()
        if told in ("applied", "edited") and (current := facts.files.get(path))
    ]
    return way_back(facts, name, (state, reason), actions, place, force=force)


def status(facts: Facts, wanted: Payload) -> Plan:
    """How the patch stands, with no action and no objection."""
    state, reason = state_of(facts, wanted.identity)
    identity = facts.recorded.identity
    return Plan(wanted.name, identity, facts.recorded.options, state, reason, facts.version, (), seen=facts.seen)


def state_of(facts: Facts, identity: str) -> tuple[str, str]:
    """The patch's state on the host and, where it needs one, the reason.

    Args:
        facts: the host.
        identity: of the wanted patch.
    """
    if facts.recorded.state != "absent":
        return recorded_state(facts, identity)
    present = [path for path, found in facts.files.items() if found and path.startswith(f"{PACKAGE}/")]
    if present or any(has_stanza(facts.content(path)) for path in (REGISTRY_FILE, OLD_MODULE)):
        return (
            "foreign",
            "it was put there from another state_dir or by hand: this host's state_dir has no record of it",
        )
    return "absent", ""


_UNWRITABLE = "deploy as the user that owns it, or install SGLang into a virtual environment of your own"
_ADOPT = "hsops deploy --force takes it over; hsops deploy --revert then removes it"


def _check_version(facts: Facts) -> list[str]:
    if missing := _registry_lacks(facts):
        raise not_patchable(facts.version, f"{missing} in {REGISTRY_FILE}")
    if error := refusal(facts.version, "source"):
        raise error
    if not within(facts.version, until=LAST):
        return [f"SGLang {facts.version or '(no version)'} was not tried; each rank says at its start what it finds"]
    return []


def _registry_lacks(facts: Facts) -> str:
    """What the stanza needs of the registry and does not find; empty when all is there."""
    try:
        tree = ast.parse(without_stanza(facts.content(REGISTRY_FILE)))
    except (SyntaxError, ValueError):
        return "source that parses"
    assigned = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    methods = {
        f.name for n in tree.body if isinstance(n, ast.ClassDef) for f in n.body if isinstance(f, ast.FunctionDef)
    }
    wanted = {"ModelRegistry": "ModelRegistry" in assigned, "resolve_model_cls": "resolve_model_cls" in methods}
    return ", ".join(name for name, there in wanted.items() if not there)


def _taken_away(path: str, content: bytes) -> Action:
    """A file of the patch goes, a module of SGLang gets its own bytes back."""
    if f"{PACKAGE}/" in path:
        return Action("remove", path, content, None)
    return Action("restore", path, content, without_stanza(content))


def _check_others(facts: Facts, wanted: Payload) -> None:
    others = {facts.owners[path] for path in (REGISTRY_FILE, *wanted.files) if path in facts.owners} - {wanted.name}
    for other in sorted(others):
        raise ForeignError(
            f"the patch {other!r} is applied there",
            why="one SGLang can hold one hs-dump",
            fix=f"hsops deploy --revert {other}",
        )


def _edits(facts: Facts, wanted: Payload) -> Iterator[Edit]:
    found = facts.files.get(REGISTRY_FILE)
    if found:
        original = without_stanza(found.content)
        yield Edit(REGISTRY_FILE, with_stanza(original), found.sha256, original)
    old = facts.files.get(OLD_MODULE)
    if old and has_stanza(old.content) and facts.recorded.files.get(OLD_MODULE) != "applied":
        original = without_stanza(old.content)  # the host cannot bring it back: it has no record, or somebody edited it
        yield Edit(OLD_MODULE, original, old.sha256, original)
    for path, content in wanted.files.items():
        held = facts.files.get(path)
        yield Edit(path, content, held.sha256 if held else None, None)
    for path, held in facts.files.items():
        if held and path.startswith(f"{PACKAGE}/") and path not in wanted.files and path not in facts.recorded.files:
            yield Edit(path, None, held.sha256, None)


def _actions(facts: Facts, edits: tuple[Edit, ...]) -> Iterator[Action]:
    for edit in edits:
        held = facts.files.get(edit.path)
        before = held.content if held else None
        if before == edit.content:
            continue
        kind = "new" if before is None else "remove" if edit.content is None else "update"
        if edit.path == REGISTRY_FILE and edit.original == before:
            kind = "append"
        yield Action(kind, edit.path, before, edit.content)
    named = {edit.path for edit in edits}
    for path, told in facts.recorded.files.items():  # files of an older version, which the agent takes away
        held = facts.files.get(path)
        if path not in named and told == "applied" and held:
            yield _taken_away(path, held.content)
