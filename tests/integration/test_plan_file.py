"""``hsops deploy --check --out`` and ``--plan``: exactly that plan, on exactly that host, or nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hsops.core.errors import AgentError, StalePlanError
from hsops.core.inventory import HsDumpPatch
from hsops.deploy import do, payload, plan
from hsops.payload.hsops_hs_dump.strategy import REGISTRY_FILE
from hsops.remote.lock import Lock
from tests.practice_host import PracticeHost, practice_host

WANTED = payload.build(HsDumpPatch(name="hs-dump", boundaries=(1, 3)))


@pytest.fixture
def host(tmp_path: Path) -> PracticeHost:
    """A host with an SGLang that can be patched, and a plan to do so in plan.json."""
    host = practice_host(tmp_path)
    made = host.hsops("deploy", "--check", "--out", "plan.json")
    assert made.returncode == 0 and "kept in plan.json" in made.stderr, made.stderr
    return host


@pytest.fixture
def bare(tmp_path: Path) -> PracticeHost:
    """The same without a plan."""
    return practice_host(tmp_path)


def error_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (error,) = json.loads(done.stdout.splitlines()[-1])["errors"]
    return dict(error)


def carry_out(host: PracticeHost) -> subprocess.CompletedProcess[str]:
    return host.hsops("deploy", "--plan", "plan.json", "--yes", "--json")


def test_a_kept_plan_is_carried_out_as_it_is(host: PracticeHost) -> None:
    """The inventory says something else by now: what was shown is what is done. A revert can be kept as well."""
    before = host.tree()
    text = host.inventory.read_text()
    host.inventory.write_text(text.replace("[1, 3]", "[2]"))

    done = carry_out(host)
    config = json.loads((host.site / "hsops_hs_dump/config.json").read_text())
    host.hsops("deploy", "--revert", "--check", "--out", "back.json", check=True)
    back = host.hsops("deploy", "--plan", "back.json", "--yes", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    assert config["boundaries"] == [1, 3]
    assert back.returncode == 0 and host.tree() == before


def _edit(host: PracticeHost) -> None:
    with (host.site / REGISTRY_FILE).open("a") as file:
        file.write("# by somebody\n")


def _add(host: PracticeHost) -> None:
    (host.site / "hsops_hs_dump").mkdir()
    (host.site / "hsops_hs_dump/more.py").write_text("x = 1\n")


def _deploy(host: PracticeHost) -> None:
    do.apply(Lock(host.agent(), "test"), plan.plan(do.look(host.agent(), "hs-dump"), WANTED))


def _upgrade(host: PracticeHost) -> None:
    (host.site / "sglang/version.py").write_text('__version__ = "0.5.10"\n')


def _chmod(host: PracticeHost) -> None:
    (host.site / REGISTRY_FILE).chmod(0o600)


def _chown(host: PracticeHost) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a file away")
    os.chown(host.site / REGISTRY_FILE, 12345, 54321)


def _link(host: PracticeHost) -> None:
    (host.site / REGISTRY_FILE).rename(host.site / "elsewhere.py")
    (host.site / REGISTRY_FILE).symlink_to(host.site / "elsewhere.py")


@pytest.mark.parametrize(
    "change,said",
    [
        (_chmod, f"{REGISTRY_FILE} has mode 0600 now, it was 0644"),
        (_chown, f"{REGISTRY_FILE} belongs to 12345:54321 now, it was 0:0"),
        (_link, f"{REGISTRY_FILE} is a link to somewhere else"),
        (_edit, f"{REGISTRY_FILE} is another"),
        (_add, "hsops_hs_dump/more.py is new"),
        (_deploy, "somebody applied or reverted the patch"),
        (_upgrade, "SGLang is 0.5.10 now, it was 0.5.9"),
    ],
)
def test_a_host_that_changed_since_is_refused(change: Any, said: str, bare: PracticeHost) -> None:
    """Whatever the plan rests on."""
    planned = plan.plan(do.look(bare.agent(), "hs-dump"), WANTED)
    do.check_fresh(bare.agent(), planned)
    change(bare)

    with pytest.raises(StalePlanError) as caught:
        do.check_fresh(bare.agent(), planned)

    assert said in caught.value.message and "--check --out" in caught.value.fix
    with pytest.raises(AgentError) as again:  # under the host's lock as well
        do.apply(Lock(bare.agent(), "test"), planned, exact=True)
    assert again.value.code == "changed-meanwhile"


def test_a_stale_plan_changes_nothing(host: PracticeHost) -> None:
    """The whole command, when somebody else deployed in between."""
    _edit(host)
    before = host.tree()

    done = carry_out(host)

    assert done.returncode == 1 and error_of(done)["type"] == "StalePlanError"
    assert error_of(done)["message"] == f"the host changed since the plan was made: {REGISTRY_FILE} is another"
    assert host.tree() == before


def test_a_change_after_the_last_look_is_refused_on_the_host(bare: PracticeHost) -> None:
    """The agent checks the plan again under its lock: a revert looks at its files too."""
    _deploy(bare)
    agent = bare.agent()
    planned = plan.plan_revert(do.look(agent, "hs-dump"), "hs-dump")
    (bare.site / "hsops_hs_dump/more.py").write_text("x = 1\n")
    before = bare.tree()

    with pytest.raises(AgentError) as caught:
        do.revert(Lock(agent, "test"), planned)

    assert caught.value.code == "changed-meanwhile" and caught.value.detail["differ"] == ["hsops_hs_dump/more.py"]
    assert bare.tree() == before


def test_a_plan_of_another_host_is_refused(host: PracticeHost, tmp_path: Path) -> None:
    """The name in the inventory leads somewhere else by now."""
    other = practice_host(tmp_path / "other")
    shutil.copy(host.folder / "plan.json", other.folder)
    before = other.tree()

    done = carry_out(other)

    assert done.returncode == 1 and error_of(done)["type"] == "StalePlanError"
    assert "the plan is of another host: folder" in error_of(done)["message"]
    assert other.tree() == before


def _as_text(replaced: str, by: str) -> Any:
    return lambda text: text.replace(replaced, by, 1)


def test_a_host_that_left_the_inventory_is_named(host: PracticeHost) -> None:
    """Before any host is asked."""
    text = host.inventory.read_text()
    host.inventory.write_text(text.replace("here", "there"))

    done = carry_out(host)

    assert done.returncode == 4 and "host 'here' is not in the inventory" in error_of(done)["message"]


TWO = """\
patches:
  a: { kind: files, from: ./a.py, to: sglang/a.py }
  b: { kind: files, from: ./b.py, to: sglang/b.py }
"""


@pytest.fixture
def two(bare: PracticeHost) -> PracticeHost:
    """A host with the patches a and b, both of its server."""
    head = bare.inventory.read_text().partition("patches:\n")[0].replace("[hs-dump]", "[a, b]")
    bare.inventory.write_text(f"{head}{TWO}default: tiny\n")
    for name in "ab":
        (bare.folder / f"{name}.py").write_text(f"{name} = 1\n")
    return bare


@pytest.mark.parametrize(
    "words,undo",
    [
        (("--plan", "plan.json"), "hsops deploy --revert a --host here"),
        (("--server", "tiny"), "hsops deploy --revert a --server tiny"),
        (("--host", "here"), "hsops deploy --revert a --host here"),
        (("a",), "hsops deploy --revert a"),
        ((), "hsops deploy --revert a"),
    ],
)
def test_the_undo_that_is_named_takes_out_what_went_in_and_no_more(
    words: tuple[str, ...], undo: str, two: PracticeHost
) -> None:
    """Patch b was there before, and stays."""
    two.hsops("deploy", "b", "--yes", check=True)
    before = two.tree()
    two.hsops("deploy", "a", "--check", "--out", "plan.json", check=True)

    done = two.hsops("deploy", "--yes", *words, check=True)
    named = [line.partition("undo: ")[2] for line in done.stdout.splitlines() if "undo: " in line]
    two.hsops(*undo.split()[1:], "--yes", check=True)

    assert named == [undo] and two.tree() == before


def test_a_large_file_that_went_in_comes_out(two: PracticeHost) -> None:
    """It and its original travel in one line."""
    data = os.urandom(1 << 20) * 26
    (two.site / "sglang/a.py").write_bytes(data[::-1])
    before = two.tree()
    (two.folder / "a.py").write_bytes(data)
    two.hsops("deploy", "a", "--yes", check=True)

    two.hsops("deploy", "a", "--status", check=True)
    two.hsops("deploy", "a", "--revert", "--yes", check=True)

    assert two.tree() == before
