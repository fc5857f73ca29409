"""``hsops deploy`` where it must refuse before it touches anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

INVENTORY = """\
hosts:
  here: {{ ssh: local, python: {python}, state_dir: {state} }}
servers:
  tiny: {{ host: here, model: /nowhere, patches: [hs-dump] }}
  bare: {{ host: here, model: /nowhere }}
patches:
  hs-dump: {{ boundaries: [1, 3] }}
default: tiny
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with an inventory of this machine, whose Python has no SGLang."""
    text = INVENTORY.format(python=sys.executable, state=tmp_path / "state")
    (tmp_path / "inventory.yaml").write_text(text)
    return tmp_path


def deploy(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return hsops("deploy", *words, cwd=cwd)


def hsops(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hsops", *words]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False, env=ENV
    )


ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def test_an_interpreter_without_sglang_is_named(here: Path) -> None:
    """With the key of the inventory to change; no record is begun."""
    done = deploy("--yes", "--json", cwd=here)

    (error,) = json.loads(done.stdout)["errors"]
    assert done.returncode == 1
    assert (error["type"], error["code"], error["host"]) == ("AgentError", "no-sglang", "here")
    assert sys.executable in error["message"] and "hosts.<name>.python" in error["fix"]
    assert not (here / "state/patches").exists()


@pytest.mark.parametrize(
    "words,said",
    [
        (("hs-dmup",), "did you mean 'hs-dump'"),
        (("--server", "bare"), "no patch is named"),
        (("--server", "tny"), "did you mean 'tiny'"),
        (("--status", "--check"), "--status only looks"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_exit_2(words: tuple[str, ...], said: str, here: Path) -> None:
    """Before any host is asked."""
    done = deploy(*words, cwd=here)

    assert done.returncode == 2 and said in done.stderr
    assert not (here / "state").exists()


@pytest.mark.parametrize("server", ["tiny", "bare"])
def test_launch_without_sglang_says_what_to_change(server: str, here: Path) -> None:
    """Whether or not a patch is looked for first; no run is begun."""
    done = hsops("launch", server, "--json", cwd=here)

    (error,) = json.loads(done.stdout)["errors"]
    assert (done.returncode, error["code"], error["host"]) == (1, "no-sglang", "here")
    assert "hosts.here.python" in error["fix"]
    assert not (here / "state/runs").exists() or not os.listdir(here / "state/runs")


@pytest.mark.parametrize(
    "words",
    [["deploy", "--check"], ["launch"], ["status"], ["logs"], ["stop"], ["diagnose"], ["extract", "p"], ["fetch"]],
    ids=" ".join,
)
def test_a_host_that_is_not_known_stops_every_command(words: list[str], here: Path) -> None:
    """--host is not passed over by those that work on a server; nothing is asked of the server's own host."""
    done = hsops(*words, "--host", "heer", cwd=here)

    assert done.returncode == 2 and "did you mean 'here'" in done.stderr, done.stderr
    assert not (here / "state").exists()


def test_fetch_from_a_host_without_dumps_leaves_no_folder(here: Path) -> None:
    """Nothing half done on this side either."""
    done = hsops("fetch", "--server", "bare", "--to", "hs", cwd=here)

    assert done.returncode == 1 and "has no manifest" in done.stderr, done.stderr
    assert not (here / "hs").exists()


@pytest.fixture
def too_old(tmp_path: Path) -> Path:
    """As ``here``, but with an interpreter that has an SGLang of long ago."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "sglang/srt/models").mkdir(parents=True)
    (site / "sglang/__init__.py").touch()
    (site / "sglang/version.py").write_text('__version__ = "0.4.1"\n')
    (site / "sglang/srt/models/deepseek_v2.py").write_text("class DeepseekV2ForCausalLM: ...\n")
    text = INVENTORY.format(python=tmp_path / "venv/bin/python", state=tmp_path / "state")
    (tmp_path / "inventory.yaml").write_text(text)
    return tmp_path


def test_an_unsupported_sglang_is_refused_with_what_to_install(too_old: Path) -> None:
    """Its version, what is supported, and nothing changed."""
    before = sorted((too_old / "venv").rglob("*"))

    done = hsops("deploy", "--yes", "--json", cwd=too_old)

    (error,) = json.loads(done.stdout)["errors"]
    assert (done.returncode, error["type"], error["host"]) == (1, "UnsupportedError", "here")
    assert "SGLang 0.4.1 cannot be patched" in error["message"] and "pip install sglang==" in error["fix"]
    assert sorted((too_old / "venv").rglob("*")) == before


def test_launch_without_the_servers_patch_is_refused(too_old: Path) -> None:
    """It would run for hours and capture nothing; the command that cures it is named, and no run is begun."""
    done = hsops("launch", "--json", cwd=too_old)

    (error,) = json.loads(done.stdout)["errors"]
    assert (done.returncode, error["message"]) == (1, "patch hs-dump is absent")
    assert error["fix"] == "hsops deploy --server tiny"
    assert not (too_old / "state/runs").exists()


def test_launch_check_shows_the_command_beside_what_is_not_deployed(too_old: Path) -> None:
    """Both at once: what would be started, and why it is not; no run is begun."""
    text, done = hsops("launch", "--check", cwd=too_old), hsops("launch", "--check", "--json", cwd=too_old)

    found = json.loads(done.stdout)
    assert (text.returncode, done.returncode, found["ok"]) == (1, 1, False)
    assert "-m sglang.launch_server" in text.stdout and "patch hs-dump absent" in text.stdout
    assert text.stdout.splitlines()[-1] == "launch will refuse: patch hs-dump is absent   hsops deploy --server tiny"
    assert [error["message"] for error in found["errors"]] == ["patch hs-dump is absent"]
    assert "-m" in found["data"]["plan"]["argv"]
    assert not (too_old / "state/runs").exists()


@pytest.fixture
def hooked(tmp_path: Path) -> Path:
    """As ``here``, with an SGLang whose command line has --forward-hooks, ``method: hook``, and a home of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "sglang/srt/models").mkdir(parents=True)
    (site / "sglang/__init__.py").touch()
    (site / "sglang/version.py").write_text('__version__ = "0.5.9"\n')
    (site / "sglang/srt/server_args.py").write_text('parser.add_argument(\n    "--forward-hooks",\n)\n')
    text = INVENTORY.format(python=tmp_path / "venv/bin/python", state="~/.hsops")
    (tmp_path / "inventory.yaml").write_text(text.replace("boundaries:", "method: hook, boundaries:"))
    return tmp_path


def test_a_hook_lies_in_the_home_of_hsops_and_goes_again(hooked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of SGLang changes; --status and --revert know it, and the other method is refused meanwhile."""
    monkeypatch.setitem(ENV, "HOME", str(hooked / "home"))
    (hooked / "home").mkdir()
    before = sorted((hooked / "venv").rglob("*"))

    for words in (("--yes",), ("--status",), ("--yes",)):
        done = deploy(*words, "--json", cwd=hooked)
        assert done.returncode == 0, done.stdout + done.stderr
    status = json.loads(deploy("--status", "--json", cwd=hooked).stdout)["data"]["patches"][0]
    (config,) = (hooked / "home/.hsops/hook").glob("*/hsops_hs_dump/config.json")
    text = (hooked / "inventory.yaml").read_text()
    (hooked / "inventory.yaml").write_text(text.replace("method: hook, ", ""))
    other = json.loads(deploy("--status", "--json", cwd=hooked).stdout)["data"]["patches"][0]
    refused = deploy("--yes", "--json", cwd=hooked)
    reverted = deploy("--revert", "--yes", "--json", cwd=hooked)

    assert (status["state"], config.parent.parent.name) == ("applied", status["identity"])
    assert other["state"] == "absent" and other["warnings"] == ["it is applied in hsops' own folder (method: hook)"]
    (error,) = json.loads(refused.stdout)["errors"]
    assert error["type"] == "ForeignError" and "method: hook" in error["message"] and "--revert" in error["fix"]
    assert reverted.returncode == 0 and not list((hooked / "home/.hsops/hook").iterdir())
    assert sorted((hooked / "venv").rglob("*")) == before and not (hooked / "~").exists()
