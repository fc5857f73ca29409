"""What ``pipx install`` and ``uv tool install`` install: the wheel in a clean environment, far from the clone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from hsops import __version__
from hsops.lab import wheels
from tests.fetching import SERVER
from tests.hosts import Server, inventory_text

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Installed:
    """hsops as somebody installed it.

    Args:
        script: ``hsops``.
        wheel: what it came from.
        home: HOME, with nothing in it.
    """

    script: Path
    wheel: Path
    home: Path

    def __call__(self, *words: str, cwd: Path | None = None, expect: int = 0) -> str:
        """Run it; returns standard output."""
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "COLUMNS": "80", "LANG": "C.UTF-8"}
        done = subprocess.run(
            [str(self.script), *words], cwd=cwd or self.home, env=env, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built from a copy of what git has, then installed with what it says that it needs, and nothing else."""
    base = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    for name in filter(None, tracked.stdout.split("\0")):
        if name.startswith(("hsops/", "playbooks/")) or "/" not in name:
            (base / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, base / "source" / name)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "wheel", "--no-deps", "-w", base, base / "source"], check=True, timeout=300)
    subprocess.run([sys.executable, "-m", "venv", base / "venv"], check=True, timeout=60)
    (wheel,) = base.glob("hsops-*.whl")
    python = base / "venv/bin/python"
    subprocess.run([python, *pip[1:], "install", "-c", ROOT / "constraints.txt", wheel], check=True, timeout=300)
    (base / "home").mkdir()
    return Installed(base / "venv/bin/hsops", wheel, base / "home")


def test_the_wheel_says_what_it_is(installed: Installed) -> None:
    """Name, version, licence with its text, and that its types are there."""
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = wheel.namelist()
        (about,) = [wheel.read(name).decode() for name in names if name.endswith("dist-info/METADATA")]

    assert f"Version: {__version__}" in about and "License-Expression: Apache-2.0" in about
    assert any(name.endswith("licenses/LICENSE") for name in names) and "hsops/py.typed" in names
    assert not [name for name in names if name.startswith("tests/")]


def test_everything_of_the_clone_that_hsops_reads_is_in_the_wheel(installed: Installed) -> None:
    """Each tracked file of the package, and what `hsops init` writes."""
    tracked = subprocess.run(
        ["git", "ls-files", "hsops"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    with zipfile.ZipFile(installed.wheel) as wheel:
        missing = set(tracked.stdout.splitlines()) - set(wheel.namelist())
        shipped = wheel.read("hsops/beginnings/inventory.yaml")

    assert missing == set()
    assert shipped == (ROOT / "inventory.yaml").read_bytes()


def test_help_version_and_completion_work_outside_the_clone(installed: Installed) -> None:
    """In a home without anything; the completion is a script for the shell that asks."""
    assert "hsops COMMAND" in installed("--help").replace("[OPTIONS] ", "")
    assert installed("--version").strip() == f"hsops {__version__}"
    assert installed("lab", "status").startswith("no lab at")

    env = {**os.environ, "HOME": str(installed.home), "_HSOPS_COMPLETE": "complete_bash",
           "COMP_WORDS": "hsops dia", "COMP_CWORD": "1"}  # fmt: skip
    done = subprocess.run([installed.script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["diagnose"]


def test_init_writes_what_a_run_needs_and_nothing_over(installed: Installed, tmp_path: Path) -> None:
    """The commented inventory and the playbook; a second time is refused."""
    installed("init", cwd=tmp_path)
    refused = installed("init", "--json", cwd=tmp_path, expect=2)

    assert (tmp_path / "inventory.yaml").read_text() == (ROOT / "inventory.yaml").read_text()
    assert (tmp_path / "playbooks/extract.yaml").read_text() == (ROOT / "playbooks/extract.yaml").read_text()
    assert "is there already" in json.loads(refused)["errors"][0]["message"]


def test_init_looks_at_a_host(installed: Installed, server: Server, tmp_path: Path) -> None:
    """What it found is in the file, which hsops reads without a fault; what it could not know says CHANGE."""
    config = str(server.folder / "ssh_config")
    said = installed("init", "practice", "--ssh-config", config, "--model", "/models/Kimi-K2.5", cwd=tmp_path)

    written = yaml.safe_load((tmp_path / "inventory.yaml").read_text())
    assert written["hosts"]["practice"]["ssh"] == "practice"
    assert written["hosts"]["practice"]["python"].startswith("/")
    assert written["servers"]["kimi-k2.5"]["model"] == "/models/Kimi-K2.5"
    assert "change what says CHANGE" in said
    assert "no inventory" not in installed("status", "--json", cwd=tmp_path)


def test_deploy_check_plans_the_capture_on_a_real_sglang(installed: Installed, server: Server, tmp_path: Path) -> None:
    """The agent and the payload are in the wheel: a plan is made over SSH, and nothing is written there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    with zipfile.ZipFile(wheels.ensure("0.5.9", Path(sys.executable), lambda _: None)) as wheel:
        wheel.extractall(site)
    spec = server.spec.model_copy(update={"python": str(tmp_path / "venv/bin/python")})
    (tmp_path / "inventory.yaml").write_text(inventory_text(spec) + SERVER.format(host="practice"))

    checked = json.loads(installed("deploy", "--check", "--json", cwd=tmp_path).splitlines()[-1])

    assert checked["ok"] and "hsops_hs_dump" in json.dumps(checked["data"])
    assert not list(site.glob("hsops_hs_dump*"))
