"""Plans for the user's own patches, of every kind, from their edits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from hsops.core.errors import ForeignError, RemoteError, UsageError
from hsops.deploy.edits import Made
from hsops.deploy.facts import Facts
from hsops.deploy.parts import Parts
from hsops.deploy.planned import Action, Edit, Plan, recorded_state, way_back

TAKE_OVER = "hsops deploy --force takes it over as it is"


def plan(facts: Facts, parts: Parts, made: Made, *, force: bool = False) -> Plan:
    """How to get from what is there to ``made``.

    Raises:
        ForeignError: somebody edited the files or did the same by hand, and ``force`` is not given; or the files are
            another patch's; or the patch is applied in another folder.
        RemoteError: the files would have to change and cannot.
    """
    state, reason = state_of(facts, parts, made)
    actions = tuple(_actions(facts, made.edits))
    if state != "applied":
        _check_elsewhere(facts, parts)
        _check_owners(facts, parts, made)
        if state == "foreign" and not force:
            told = facts.recorded.state == "foreign"
            why = "a deploy would overwrite that" if told else "the host has no record of what was there before"
            raise ForeignError(reason, why=why, fix="look: --diff --force --check; do: --force" if told else TAKE_OVER)
        if actions and facts.unwritable:
            raise RemoteError(facts.unwritable, why="the patch changes files there", fix=_WRITABLE)
    return Plan(
        parts.name,
        parts.identity,
        parts.options,
        state,
        reason,
        facts.version,
        actions if state != "applied" else (),
        made.edits,
        made.notes if state != "applied" else (),
        parts.place,
        facts.seen,
        parts.kind,
    )


def status(facts: Facts, parts: Parts, made: Made | None = None) -> Plan:
    """How the patch stands, with no action and no objection; ``made``: what it would come to, where that is known."""
    state, reason = state_of(facts, parts, made or Made(()))
    told = facts.recorded
    where = [place for place in facts.places if place != facts.root]
    warnings = (f"it is applied in {', '.join(where)}",) if where else ()
    return Plan(
        parts.name,
        told.identity,
        told.options,
        state,
        reason,
        facts.version,
        (),
        (),
        warnings,
        parts.place,
        facts.seen,
        parts.kind,
    )


def plan_revert(facts: Facts, name: str, place: str, kind: str, *, force: bool = False) -> Plan:
    """How to get back to what was there before. Raises as ``plan.way_back``."""
    recorded = facts.recorded
    actions = []
    for path, told in recorded.files.items():
        held, old = facts.files.get(path), facts.originals.get(path)
        if told not in ("original", "replaced") and (held or old):
            before, after = held.content if held else None, old.content if old else None
            actions.append(Action("restore" if old else "remove", path, before, after, _lines(before, after)))
    judged = recorded_state(facts, recorded.identity)
    return way_back(facts, name, judged, actions, place, kind=kind, force=force)


def state_of(facts: Facts, parts: Parts, made: Made) -> tuple[str, str]:
    """The patch's state on the host and, where it needs one, the reason."""
    state, reason = recorded_state(facts, parts.identity)
    return ("foreign", made.there) if state == "absent" and made.there else (state, reason)


def check_together(plans: Sequence[Plan]) -> None:
    """No two of one host's patches change one file, by whatever path; none makes a file where another needs a folder.

    Raises:
        UsageError: two do.
    """
    edits = [(plan.patch, edit.path, plan.seen.real(edit.path), edit.content) for plan in plans for edit in plan.edits]
    held = {real: (patch, path) for patch, path, real, _ in edits}
    files = {real: (patch, path) for patch, path, real, content in edits if content is not None}
    for patch, path, real, _ in edits:
        other, named = held[real]
        if other != patch:
            raise _not_together(patch, other, f"both change {path}" + (f", which is {named}" if named != path else ""))
        for above in accumulate(real.split("/")[:-1], "{}/{}".format):
            other, named = files.get(above, (patch, ""))
            if other != patch:
                raise _not_together(patch, other, f"do not go together: {path} needs a folder where {named} is a file")


def _not_together(patch: str, other: str, how: str) -> UsageError:
    one, two = sorted((patch, other))
    return UsageError(
        f"the patches {one!r} and {two!r} {how}",
        why="they could not be taken out one by one; nothing was changed",
        fix="join them into one patch, or deploy one of the two",
    )


_WRITABLE = "deploy as the user that owns it"


def _check_elsewhere(facts: Facts, parts: Parts) -> None:
    if where := [place for place in facts.places if place != facts.root]:
        raise ForeignError(
            f"{parts.name} is applied in {', '.join(where)}",
            why=f"the inventory's root is {facts.root} now, and a patch can be in one place",
            fix=f"hsops deploy --revert {parts.name}; then hsops deploy again",
        )


def _check_owners(facts: Facts, parts: Parts, made: Made) -> None:
    for edit in made.edits:
        owner = facts.owners.get(edit.path, parts.name)
        if owner != parts.name:
            raise ForeignError(
                f"the patch {owner!r} already changes {edit.path}",
                why="two patches on one file could not be taken out one by one",
                fix=f"hsops deploy --revert {owner}, or join the two into one patch",
            )


def _actions(facts: Facts, edits: Sequence[Edit]) -> Iterator[Action]:
    for edit in edits:
        held = facts.files.get(edit.path)
        before = held.content if held else None
        if before != edit.content:
            kind = "new" if before is None else "remove" if edit.content is None else "update"
            yield Action(kind, edit.path, before, edit.content, _lines(before, edit.content))
        elif held and edit.exact and edit.content is not None and held.mode != edit.mode:
            yield Action("mode", edit.path, before, before, f"{held.mode:04o} -> {edit.mode:04o}")
    named = {edit.path for edit in edits}
    for path, told in facts.recorded.files.items():  # what an older version of the patch changed and this one does not
        held, old = facts.files.get(path), facts.originals.get(path)
        if path not in named and told == "applied" and (held or old):
            before, after = held.content if held else None, old.content if old else None
            yield Action("restore" if old else "remove", path, before, after, _lines(before, after))


def _lines(before: bytes | None, after: bytes | None) -> str:
    if b"\0" in (before or b"") + (after or b""):
        return f"{len(before or b''):,} -> {len(after or b''):,} bytes"
    return f"{(before or b'').count(bytes([10]))} -> {(after or b'').count(bytes([10]))} lines"
