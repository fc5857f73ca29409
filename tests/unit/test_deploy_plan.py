"""The plan of a deploy, from facts alone."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from hsops.core.errors import ForeignError, RemoteError, UnsupportedError
from hsops.core.inventory import HsDumpPatch
from hsops.deploy import payload
from hsops.deploy.facts import Facts, FileFacts, Recorded
from hsops.deploy.payload import PACKAGE, Payload, with_stanza
from hsops.deploy.plan import OLD_MODULE, plan, plan_revert, state_of
from hsops.payload.hsops_hs_dump.strategy import REGISTRY_FILE
from tests.unit.sources import REGISTRY

ABSENT = Recorded("absent", "", {}, "", {})


def wanted(*boundaries: int) -> Payload:
    return payload.build(HsDumpPatch(name="hs-dump", boundaries=boundaries or (3, 31, 59)))


def facts(files: dict[str, bytes] | None = None, *, version: str = "0.5.9", recorded: Recorded = ABSENT) -> Facts:
    """A host with a 0.5.9-like SGLang and ``files`` on top."""
    present = {REGISTRY_FILE: REGISTRY.encode(), **(files or {})}
    told = {path: FileFacts(data, 0o644, hashlib.sha256(data).hexdigest()) for path, data in present.items()}
    return Facts(version, "/site", recorded, dict(told), {}, "")


def applied(patch: Payload, *, version: str = "0.5.9", **overrides: str) -> Facts:
    """The host after ``patch`` was applied; ``overrides`` change what is told of single files."""
    files = {**patch.files, REGISTRY_FILE: with_stanza(REGISTRY.encode())}
    told = dict.fromkeys(files, "applied") | overrides
    state = "foreign" if "edited" in told.values() else "applied" if set(told.values()) == {"applied"} else "partial"
    return facts(files, version=version, recorded=Recorded(state, patch.identity, patch.options, "0.5.9", told))


def test_on_a_clean_host_the_package_is_new_and_the_module_grows_at_its_end() -> None:
    """No line of the module is changed, some are added after the last."""
    made = plan(facts(), wanted())

    kinds = {action.path: action.kind for action in made.actions}
    module = next(action for action in made.actions if action.path == REGISTRY_FILE)

    assert made.state == "absent"
    assert kinds.pop(REGISTRY_FILE) == "append"
    assert set(kinds.values()) == {"new"} and f"{PACKAGE}/config.json" in kinds
    assert module.after is not None and module.after.startswith(REGISTRY.encode())


def test_where_it_is_applied_already_nothing_changes() -> None:
    """The second deploy has no action."""
    made = plan(applied(wanted()), wanted())

    assert (made.state, made.changes) == ("applied", 0)


def test_other_boundaries_change_only_the_configuration() -> None:
    """Options are baked into config.json, so another option makes the deployed patch stale."""
    made = plan(applied(wanted(3, 31, 59)), wanted(2, 30, 58))

    assert made.state == "stale"
    assert [(action.kind, action.path) for action in made.actions] == [("update", f"{PACKAGE}/config.json")]


def test_a_module_of_an_older_payload_goes_away() -> None:
    """What only the record knows is removed."""
    old = f"{PACKAGE}/gone.py"
    held = applied(wanted())
    data = FileFacts(b"x", 0o644, hashlib.sha256(b"x").hexdigest())
    recorded = replace(held.recorded, identity="0" * 12, files={**held.recorded.files, old: "applied"})

    made = plan(replace(held, recorded=recorded, files={**held.files, old: data}), wanted())

    assert [(action.kind, action.path) for action in made.actions] == [("remove", old)]


def test_an_edit_of_somebody_else_is_not_overwritten_without_force() -> None:
    """With force the module gets a fresh stanza and keeps what else was edited in it."""
    edited = with_stanza(REGISTRY.encode()) + b"# mine\n"
    held = applied(wanted(), **{REGISTRY_FILE: "edited"})
    file = FileFacts(edited, 0o644, hashlib.sha256(edited).hexdigest())
    held = replace(held, files={**held.files, REGISTRY_FILE: file})

    with pytest.raises(ForeignError) as caught:
        plan(held, wanted())
    forced = plan(held, wanted(), force=True)

    module = next(edit for edit in forced.edits if edit.path == REGISTRY_FILE)
    assert "--force" in caught.value.fix
    assert module.original == REGISTRY.encode() + b"# mine\n"
    assert module.content == with_stanza(REGISTRY.encode() + b"# mine\n")


def test_a_stanza_that_the_host_has_no_record_of_is_foreign() -> None:
    """Deployed from another account or state_dir: it can be taken over, and reverting says how."""
    found = facts({REGISTRY_FILE: with_stanza(REGISTRY.encode())})

    with pytest.raises(ForeignError):
        plan(found, wanted())
    with pytest.raises(ForeignError) as caught:
        plan_revert(found, "hs-dump")

    assert state_of(found, wanted().identity)[0] == "foreign"
    assert "--force" in caught.value.fix


def test_after_an_upgrade_of_sglang_it_is_partial_and_applies_again() -> None:
    """pip replaced the module and left the package."""
    held = applied(wanted(), version="0.5.12", **{REGISTRY_FILE: "replaced"})
    file = FileFacts(REGISTRY.encode(), 0o644, hashlib.sha256(REGISTRY.encode()).hexdigest())

    made = plan(replace(held, files={**held.files, REGISTRY_FILE: file}), wanted())

    assert made.state == "partial" and "0.5.12 now" in made.reason
    assert [(action.kind, action.path) for action in made.actions] == [("append", REGISTRY_FILE)]


@pytest.mark.parametrize(
    "version,model", [("0.5.9", "class ModelRegistry:\n    pass\n"), ("0.5.3", REGISTRY), ("0.6.0", "x = (")]
)
def test_an_sglang_that_cannot_be_captured_from_is_refused(version: str, model: str) -> None:
    """Unknown shape, too old, or source that does not parse."""
    with pytest.raises(UnsupportedError) as caught:
        plan(facts({REGISTRY_FILE: model.encode()}, version=version), wanted())

    assert version in caught.value.message and caught.value.fix


def test_a_newer_sglang_of_a_known_shape_is_a_warning() -> None:
    """What fits goes by the code, not by the number."""
    made = plan(facts({REGISTRY_FILE: REGISTRY.encode()}, version="0.5.30"), wanted())

    assert made.changes and "0.5.30 was not tried" in made.warnings[0]


def test_files_that_cannot_be_written_are_an_error_before_anything_is_asked() -> None:
    """Only when something would have to change."""
    with pytest.raises(RemoteError):
        plan(replace(facts(), unwritable="read-only"), wanted())

    assert plan(replace(applied(wanted()), unwritable="read-only"), wanted()).changes == 0


def test_another_patch_of_the_same_kind_is_named() -> None:
    """Two inventories' names for hs-dump would fight for the same files."""
    found = replace(
        applied(wanted()), recorded=ABSENT, owners={REGISTRY_FILE: "other", f"{PACKAGE}/__init__.py": "other"}
    )

    with pytest.raises(ForeignError) as caught:
        plan(found, wanted())

    assert caught.value.fix == "hsops deploy --revert other"


def test_reverting_removes_the_package_and_shortens_the_module() -> None:
    """The plan of a revert is the plan of the apply backwards."""
    made = plan_revert(applied(wanted()), "hs-dump")

    module = next(action for action in made.actions if action.path == REGISTRY_FILE)
    assert (module.kind, module.after) == ("restore", REGISTRY.encode())
    assert {action.kind for action in made.actions if action.path != REGISTRY_FILE} == {"remove"}
    assert plan_revert(facts(), "hs-dump").changes == 0


def test_the_diff_shows_the_stanza_and_the_new_files() -> None:
    """A unified diff that patch(1) would understand."""
    lines = list(plan(facts(), wanted()).diff())

    assert f"--- a/{REGISTRY_FILE}" in lines and f"+++ b/{PACKAGE}/config.json" in lines
    assert not [line for line in lines if line.startswith("-") and not line.startswith("---")]


def test_the_diff_to_read_ends_with_what_becomes_of_sglang() -> None:
    """Of hsops' own package one line, first; a change of one of its files is a change like others."""
    new = list(plan(facts(), wanted()).diff(whole=False))
    other = list(plan(applied(wanted(3, 31, 59)), wanted(2, 30, 58)).diff(whole=False))

    made = [action for action in plan(facts(), wanted()).actions if action.path.startswith(f"{PACKAGE}/")]
    lines = sum((action.after or b"").count(b"\n") for action in made)
    assert new[0] == f"# new {PACKAGE}/: {len(made)} files of hsops' own, {lines:,} lines (-v shows them)"
    assert new[1] == f"--- a/{REGISTRY_FILE}"
    assert [line for line in new if line.startswith("+++ ")] == [f"+++ b/{REGISTRY_FILE}"]
    assert f"+++ b/{PACKAGE}/config.json" in other


def of_an_older_hsops(told: str) -> Facts:
    """A host with the stanza at the end of deepseek_v2.py, as before; ``told``: the record's word of it."""
    old = {f"{PACKAGE}/__init__.py": b"old", OLD_MODULE: with_stanza(b"class DeepseekV2Model: ...\n")}
    files = dict.fromkeys(old, "applied") | {OLD_MODULE: told}
    return facts(old, recorded=Recorded("foreign" if told == "edited" else "applied", "0" * 12, {}, "0.5.9", files))


def test_the_stanza_of_an_older_hsops_is_stale_and_moves() -> None:
    """The module of the model gets its own bytes back (the host has them), the registry gets the stanza."""
    made = plan(of_an_older_hsops("applied"), wanted())

    kinds = {action.path: (action.kind, action.after) for action in made.actions}
    assert made.state == "stale"
    assert kinds[OLD_MODULE] == ("restore", b"class DeepseekV2Model: ...\n")
    assert kinds[REGISTRY_FILE] == ("append", with_stanza(REGISTRY.encode()))
    assert OLD_MODULE not in {edit.path for edit in made.edits}


def test_an_older_stanza_that_the_host_cannot_bring_back_is_cut_out() -> None:
    """Somebody edited the module since, or there is no record: with force, what is not ours stays."""
    edited = plan(of_an_older_hsops("edited"), wanted(), force=True)
    unrecorded = plan(replace(of_an_older_hsops("applied"), recorded=ABSENT), wanted(), force=True)

    for made in (edited, unrecorded):
        (edit,) = (edit for edit in made.edits if edit.path == OLD_MODULE)
        assert edit.content == edit.original == b"class DeepseekV2Model: ...\n"
