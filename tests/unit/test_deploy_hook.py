"""``method: hook``: what is put where, what launch adds, and how the factory finds the model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hsops.core.errors import ForeignError, UnsupportedError
from hsops.core.inventory import HsDumpPatch
from hsops.deploy import hook, payload
from hsops.deploy.facts import Facts, FileFacts, Recorded
from hsops.deploy.plan import plan, plan_revert
from hsops.launch import hook as launch_hook
from hsops.payload import hsops_hs_dump
from hsops.payload.hsops_hs_dump import wiring
from hsops.payload.hsops_hs_dump.settings import DUMP_DIR
from hsops.render.deploy import Row, plan_lines
from tests.unit.capture_parts import settings_for

ABSENT = Recorded("absent", "", {}, "", {})
EMPTY = Facts("0.5.9", "/state/hook", ABSENT, {}, {}, "")


def wanted(*boundaries: int, method: Any = "hook") -> payload.Payload:
    return payload.build(HsDumpPatch(name="hs-dump", boundaries=boundaries or (3, 31), method=method))


def applied(patch: payload.Payload) -> Facts:
    """hsops' own folder after ``patch`` was applied."""
    files = {path: FileFacts(data, 0o644, hashlib.sha256(data).hexdigest()) for path, data in patch.files.items()}
    recorded = Recorded("applied", patch.identity, patch.options, "0.5.9", dict.fromkeys(files, "applied"))
    return replace(EMPTY, recorded=recorded, files=dict(files))


def test_only_the_package_is_put_there_below_its_identity() -> None:
    """No file of SGLang is in the plan, and another identity has another folder."""
    made, source = plan(EMPTY, wanted()), wanted(method="source")

    folder = f"{made.identity}/{payload.PACKAGE}/"
    assert made.place == "hook" and made.identity != source.identity
    assert {action.kind for action in made.actions} == {"new"}
    assert all(action.path.startswith(folder) for action in made.actions)
    assert json.loads(wanted().files[f"{folder}config.json"])["boundaries"] == [3, 31]


def test_other_options_replace_the_folder() -> None:
    """The new one comes, the recorded one goes."""
    before = wanted(3)

    made = plan(applied(before), wanted(2))

    kinds = {action.path.split("/")[0]: action.kind for action in made.actions}
    assert made.state == "stale" and kinds == {wanted(2).identity: "new", before.identity: "remove"}
    assert plan(applied(before), before).changes == 0


def test_a_plan_says_where_the_folders_are() -> None:
    """One line a folder, below the state folder; none speaks of site-packages."""
    before = wanted(3)

    _title, *lines = plan_lines([Row("box", plan(applied(before), wanted(2)))])

    told = [line.split()[:2] for line in lines]
    assert told == [
        ["new", f"<state_dir>/hook/{wanted(2).identity}/{payload.PACKAGE}/"],
        ["remove", f"<state_dir>/hook/{before.identity}/{payload.PACKAGE}/"],
    ]


def test_a_revert_takes_the_folder_away() -> None:
    """All of it, and from where it is."""
    patch = wanted()

    made = plan_revert(applied(patch), "hs-dump", place=hook.PLACE)

    assert {action.kind for action in made.actions} == {"remove"} and made.place == "hook"
    assert {action.path for action in made.actions} == set(patch.files)


def test_an_sglang_without_the_flag_is_refused() -> None:
    """0.5.4 and 0.5.5."""
    with pytest.raises(UnsupportedError) as caught:
        hook.check(replace(EMPTY, version="0.5.5", hooks=False))

    assert "0.5.5 has no --forward-hooks" in caught.value.message and "method: source" in caught.value.fix
    assert hook.check(EMPTY) == [] and "0.6.0 was not tried" in hook.check(replace(EMPTY, version="0.6.0"))[0]


@pytest.mark.parametrize("place,where", [("hook", "SGLang's files"), ("source", "hsops' own folder")])
def test_one_method_at_a_time(place: str, where: str) -> None:
    """The other one is named, and how to take it out."""
    hook.check_other(EMPTY, "hs-dump", place)

    with pytest.raises(ForeignError, match=where) as caught:
        hook.check_other(applied(wanted()), "hs-dump", place)
    assert "--revert" in caught.value.fix


def test_the_flag_keeps_hooks_of_the_users_own() -> None:
    """Ours comes after them; what is no list is refused."""
    ours = json.loads(launch_hook.argument(None))
    both = json.loads(launch_hook.argument('[{"name": "mine"}]'))

    assert ours == [launch_hook.SPEC] and both == [{"name": "mine"}, launch_hook.SPEC]
    for bad in ("{}", "no JSON"):
        with pytest.raises(ValueError, match=r"JSON list|Expecting"):
            launch_hook.argument(bad)


def test_pythons_path_keeps_what_was_on_it() -> None:
    """The inventory's, else the host's own, which the agent fills in."""
    assert launch_hook.environment("/s/hook/abc", {}) == {"PYTHONPATH": "/s/hook/abc{:PYTHONPATH}"}
    assert launch_hook.environment("/s/hook/abc", {"PYTHONPATH": "/mine"}) == {"PYTHONPATH": "/s/hook/abc:/mine"}


class Told:
    """An installer that keeps what it is told."""

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.reasons: list[str] = []
        self.built, self.refuse = self.models.append, self.reasons.append


class Loaded:
    """A model."""

    def named_modules(self) -> list[Any]:
        return []


def register_forward_hooks(model: Any, specs: list[Any]) -> None:
    """As SGLang does."""
    for spec in specs:
        assert spec({}) is None


def elsewhere(spec: Any) -> None:
    """A place that has no model."""
    spec({})


def test_the_factory_finds_the_model_of_its_caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Elsewhere it refuses; without a dump folder it does nothing."""
    told, loaded = Told(), Loaded()
    monkeypatch.setattr(wiring, "new_installer", lambda: told)

    monkeypatch.delenv(DUMP_DIR, raising=False)
    register_forward_hooks(loaded, [hsops_hs_dump.hook])
    assert not told.models

    monkeypatch.setenv(DUMP_DIR, str(tmp_path))
    register_forward_hooks(loaded, [hsops_hs_dump.hook])
    elsewhere(hsops_hs_dump.hook)

    assert told.models == [loaded]
    assert "from a place that is not known" in told.reasons[0]


def test_the_factory_and_the_stanza_share_one_installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever calls first: a process has one capture."""
    monkeypatch.setattr(wiring.configuration, "load", lambda _environ: settings_for(tmp_path))
    wiring.new_installer.cache_clear()

    assert wiring.new_installer() is wiring.new_installer()
    wiring.new_installer.cache_clear()
