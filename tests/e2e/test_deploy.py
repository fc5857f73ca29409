"""``hsops deploy`` on a real SGLang's tree, over SSH."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.deploy.do import CHANGE
from hsops.deploy.payload import with_stanza
from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost
from tests.e2e.practice import MINUTES, Practice, practice

REGISTRY = "sglang/srt/models/registry.py"
OLD_MODULE = "sglang/srt/models/deepseek_v2.py"
PACKAGE = "hsops_hs_dump"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(20 * MINUTES)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Practice]:
    """One lab for the module; every test leaves it without the patch."""
    with practice(tmp_path_factory.mktemp("deploy"), sglang="0.5.9", tp=1) as up:
        yield up


@pytest.fixture
def clean(lab: Practice) -> Iterator[Practice]:
    """The lab, and whatever happened, the original module afterwards."""
    module = lab.site / REGISTRY
    before, times = module.read_bytes(), module.stat()
    old, old_times = (lab.site / OLD_MODULE).read_bytes(), (lab.site / OLD_MODULE).stat()
    yield lab
    lab.run("deploy", "--revert", "--force", "--yes")
    assert not (lab.site / PACKAGE).exists()
    if module.read_bytes() != before:
        module.write_bytes(before)
    assert module.stat().st_mode == times.st_mode
    (lab.site / OLD_MODULE).write_bytes(old)
    os.utime(lab.site / OLD_MODULE, ns=(old_times.st_atime_ns, old_times.st_mtime_ns))


def tree(lab: Practice) -> dict[str, Any]:
    """Every folder and file of the site: size, mode, time stamp; bytes of what the patch may touch."""
    found: dict[str, Any] = {}
    for path in lab.site.rglob("*"):
        told, name = path.stat(), str(path.relative_to(lab.site))
        if path.is_dir():
            found[name] = told.st_mode
        else:
            data = path.read_bytes() if "/models/" in name or PACKAGE in name else b""
            found[name] = (told.st_mode, told.st_size, told.st_mtime_ns, data)
    return found


def error(lab: Practice, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the one error of a command that must fail."""
    done = lab.run("--json", *words)
    (told,) = json.loads(done.stdout.splitlines()[-1])["errors"]
    return done.returncode, told


def test_check_deploy_again_and_revert(clean: Practice) -> None:
    """--check writes nothing, the second deploy writes nothing, the revert leaves the very tree."""
    before = tree(clean)

    check = clean.do("deploy", "--check", "--diff")
    unchanged = tree(clean)
    first = clean.do("deploy", "--yes")
    deployed = tree(clean)
    second = clean.do("deploy", "--yes")
    status = clean.do("deploy", "--status")
    again = tree(clean)
    revert = clean.do("deploy", "--revert", "--yes")

    assert check["changes"] == first["changes"] == revert["changes"] > 10
    assert f"+++ b/{REGISTRY}" in check["patches"][0]["diff"]
    assert unchanged == before
    assert second["changes"] == 0 and again == deployed
    assert status["patches"][0]["state"] == "applied"
    assert status["patches"][0]["options"] == {"boundaries": [1, 3, 5], "final": "pre-norm", "method": "source"}
    assert set(deployed) - set(before) == {PACKAGE, *(n for n in deployed if n.startswith(f"{PACKAGE}/"))}
    assert tree(clean) == before


def test_other_options_are_stale_and_replace(clean: Practice) -> None:
    """Only config.json changes; a running capture of the old options is another matter."""
    clean.do("deploy", "--yes")
    held = clean.inventory.read_text()
    clean.change("patches", "hs-dump", boundaries=[2, 4])

    status = clean.do("deploy", "--status")["patches"][0]
    replaced = clean.do("deploy", "--yes")["patches"][0]
    clean.inventory.write_text(held)

    assert status["state"] == "stale"
    assert [action["path"] for action in replaced["actions"]] == [f"{PACKAGE}/config.json"]
    assert json.loads((clean.site / PACKAGE / "config.json").read_text())["boundaries"] == [2, 4]


def test_an_edit_by_hand_is_kept(clean: Practice) -> None:
    """Neither deploy nor revert goes over it without --force; with force the edit stays and the stanza goes."""
    clean.do("deploy", "--yes")
    module = clean.site / REGISTRY
    deployed = module.read_bytes()
    clean.change("patches", "hs-dump", boundaries=[1, 3])
    module.write_bytes(b"# mine\n" + deployed)

    codes = [error(clean, *words)[1]["type"] for words in (("deploy", "--yes"), ("deploy", "--revert", "--yes"))]
    after_refusals = module.read_bytes()
    clean.do("deploy", "--force", "--yes")
    forced = module.read_bytes()
    clean.do("deploy", "--revert", "--yes")
    clean.change("patches", "hs-dump", boundaries=[1, 3, 5])

    assert codes == ["ForeignError", "ForeignError"]
    assert after_refusals == forced == b"# mine\n" + deployed
    assert module.read_bytes().startswith(b"# mine\n") and b"hsops" not in module.read_bytes()


def test_the_stanza_of_an_older_hsops_moves_to_the_registry(clean: Practice) -> None:
    """The host has the model's module as it was; it comes back, and a revert leaves the very tree."""
    before = tree(clean)
    deploy_as_before(clean)
    old = (clean.site / OLD_MODULE).read_bytes()

    status = clean.do("deploy", "--status")["patches"][0]
    done = clean.do("deploy", "--yes")["patches"][0]
    moved = tree(clean)
    clean.do("deploy", "--revert", "--yes")

    assert b"hsops" in old and status["state"] == done["state"] == "stale"
    kinds = {action["path"]: action["kind"] for action in done["actions"]}
    assert (kinds[OLD_MODULE], kinds[REGISTRY]) == ("restore", "append")
    assert moved[OLD_MODULE] == before[OLD_MODULE] and b"hsops" in (moved[REGISTRY][3])
    assert tree(clean) == before


def deploy_as_before(lab: Practice) -> None:
    """What hsops 0.1 did: the stanza at the end of the model's module, by the same agent."""
    module = (lab.site / OLD_MODULE).read_bytes()
    edits = [
        {
            "path": path,
            "content_b64": base64.b64encode(after).decode(),
            "mode": 0o644,
            "before_sha256": before and hashlib.sha256(before).hexdigest(),
        }
        for path, before, after in (
            (OLD_MODULE, module, with_stanza(module)),
            (f"{PACKAGE}/__init__.py", None, b"def install(module): ...\n"),
            (f"{PACKAGE}/old.py", None, b"x = 1\n"),
        )
    ]
    agent = Agent(LocalHost("lab"), python=str(lab.python), state_dir=str(lab.home / "state"))
    agent.call("patch-apply", deadline=CHANGE, patch="hs-dump", identity="0" * 12, options={}, edits=edits)


def test_an_unknown_shape_of_sglang_is_refused(clean: Practice) -> None:
    """What was not found is named; nothing is changed."""
    module = clean.site / REGISTRY
    module.write_bytes(module.read_bytes().replace(b"def resolve_model_cls(", b"def resolve_class("))
    before = tree(clean)

    code, told = error(clean, "deploy", "--yes")

    assert (code, told["type"]) == (1, "UnsupportedError")
    assert "0.5.9" in told["message"] and "resolve_model_cls" in told["message"]
    assert tree(clean) == before


def test_a_served_model_of_an_unknown_shape_is_refused(clean: Practice) -> None:
    """By the model's own module on the host, before anything is changed; --force leaves it to the ranks."""
    module = clean.site / OLD_MODULE
    whole = module.read_bytes()
    module.write_bytes(whole.replace(b"self.layer_communicator.prepare_attn(", b"self.layer_communicator.prepare_it("))
    before = tree(clean)

    code, told = error(clean, "deploy", "--yes")
    refused = tree(clean)
    forced = clean.do("deploy", "--check", "--force")["patches"][0]
    module.write_bytes(whole)

    assert (code, told["type"]) == (1, "UnsupportedError") and refused == before
    assert "DeepseekV3ForCausalLM has a shape that is not known" in told["message"]
    assert "layer_communicator.prepare_attn in each layer" in told["message"]
    assert any("DeepseekV3ForCausalLM" in warning for warning in forced["warnings"])


def test_a_state_dir_that_was_lost_can_be_taken_over(clean: Practice) -> None:
    """Without a record the patch is foreign; --force adopts it, and revert is whole again."""
    before = tree(clean)
    clean.do("deploy", "--yes")
    (record,) = (clean.home / "state/patches/hs-dump").glob("*/record.json")
    record.unlink()

    code, told = error(clean, "deploy", "--yes")
    adopted = clean.do("deploy", "--force", "--yes")
    clean.do("deploy", "--revert", "--yes")
    after = tree(clean)

    assert (code, told["type"]) == (1, "ForeignError") and "--force" in told["fix"]
    assert adopted["patches"][0]["done"]
    assert {n: t if isinstance(t, int) else (t[0], t[1], t[3]) for n, t in after.items()} == {
        n: t if isinstance(t, int) else (t[0], t[1], t[3]) for n, t in before.items()
    }


def test_a_boundary_beyond_the_model_is_said_by_the_rank(clean: Practice) -> None:
    """Nobody can know at deploy; at launch the rank says it, and launch fails instead of serving without capture."""
    clean.change("patches", "hs-dump", boundaries=[1, 9])
    clean.do("deploy", "--yes")

    done = clean.run("launch", "--wait-healthy", timeout=4 * MINUTES)
    clean.do("stop", "--grace", "1")
    (hello,) = (json.loads(path.read_text()) for path in (clean.dumps / "hello").glob("*.json"))
    clean.do("deploy", "--revert", "--yes")
    clean.change("patches", "hs-dump", boundaries=[1, 3, 5])

    assert done.returncode not in (0, 130)
    assert "boundaries 9: this model has 0 to 5" in done.stderr + done.stdout
    assert (hello["ok"], hello["rank"]) == (False, 0)
    assert not Path(clean.site, PACKAGE).exists(), "not even byte code is left behind"
