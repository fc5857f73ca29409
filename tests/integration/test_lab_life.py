"""The life of a lab, all but SGLang's start: a real package set, wheel, sshd and processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hsops import lab
from hsops.core.errors import LabError
from hsops.lab import Lab
from hsops.lab.pip import Pip

WAIT = "print('ready', flush=True); signal.pause()"
DEEPSEEK = Path("sglang/srt/models/deepseek_v2.py")
pytestmark = pytest.mark.timeout(1200)  # the first of all labs builds the package set


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab's home, with a space in its name."""
    home = tmp_path_factory.mktemp("labs") / "a lab"
    yield home
    lab.down(home, purge=True)


@pytest.fixture
def made(home: Path) -> Lab:
    """The lab there, up and without a fault."""
    return lab.up(home)


def ssh(made: Lab, *command: str) -> subprocess.Popen[str]:
    """A command in a session on the lab."""
    argv = ["ssh", "-F", str(made.layout.ssh_config), "-o", "BatchMode=yes", "lab", *command]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(made: Lab, *command: str) -> str:
    """What a command on the lab prints."""
    with ssh(made, *command) as child:
        out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    return out.strip()


def test_the_labs_python_finds_sglang_as_on_a_real_host(made: Lab) -> None:
    """Isolated, over SSH: version, torch, py-spy beside the interpreter, its own executable."""
    python = f"'{made.layout.python}' -I -c"
    asked = "from importlib.metadata import version as v; import torch, sys; print(v('sglang'), torch.__version__)"

    assert answer(made, f'{python} "{asked}"').startswith("0.5.9 2.")
    assert "py-spy" in answer(made, f"'{made.layout.python.parent}/py-spy' --version")
    assert answer(made, f"{python} 'import os; print(os.readlink(\"/proc/self/exe\"))'") == str(made.layout.python)


def test_a_second_up_does_nothing(made: Lab) -> None:
    """Everything is recognised as it is."""
    again = lab.up(made.layout.home)

    assert again.done == ()
    assert again.port == made.port


def test_a_fault_is_armed_and_disarmed_without_touching_sglang(made: Lab) -> None:
    """What was deployed meanwhile stays deployed."""
    source = made.layout.site / DEEPSEEK
    with source.open("a") as file:
        file.write("# a deployed stanza\n")
    patched = source.read_bytes()

    broken = lab.up(made.layout.home, fault="busy-wait")

    assert broken.done == ("fault busy-wait",)
    assert armed(made) == ["sglang.srt.model_executor.model_runner"]
    assert lab.up(made.layout.home).fault is None
    assert armed(made) == []
    assert source.read_bytes() == patched


def armed(made: Lab) -> list[str]:
    """The modules that an interpreter of the lab will break on import."""
    of_faults = "any(patch.__module__ == 'hsops_lab_shims.faults' for patch in patches)"
    show = f"from hsops_lab_shims import hooks; print(*[m for m, patches in hooks._waiting.items() if {of_faults}])"
    return answer(made, f"'{made.layout.python}' -I -c \"{show}\"").split()


def test_down_ends_the_labs_processes_and_no_other(made: Lab, tmp_path: Path) -> None:
    """A detached one with a title of its own is found; a stranger whose folder is the lab's home is not."""
    retitled = f"import signal; from setproctitle import *; setproctitle('sglang::scheduler_TP0'); {WAIT}"
    with ssh(made, f"exec setsid '{made.layout.python}' -I -c \"{retitled}\"") as session:
        assert session.stdout and session.stdout.readline() == "ready\n"
        stranger = psutil.Popen([sys.executable, "-c", "input()"], cwd=made.layout.home, stdin=subprocess.PIPE)
        try:
            ended = lab.down(made.layout.home)

            assert "sglang::scheduler_TP0" in [process.title for process in ended]
            assert stranger.is_running()
            session.wait(20)
        finally:
            stranger.kill()
            stranger.wait()
    after = lab.status(made.layout.home)
    assert (after.processes, after.port) == ((), None)
    assert lab.down(made.layout.home) == []


def test_another_sglang_is_not_put_under_a_running_server(made: Lab) -> None:
    """It is replaced once nothing runs; then the lab has that version, and keeps it."""
    with ssh(made, f"exec '{made.layout.python}' -I -c \"import signal; {WAIT}\"") as session:
        assert session.stdout and session.stdout.readline() == "ready\n"

        with pytest.raises(LabError, match="still run"):
            lab.up(made.layout.home, sglang="0.5.23")

        assert lab.up(made.layout.home).sglang == "0.5.9"
        lab.down(made.layout.home)

    assert lab.up(made.layout.home, sglang="0.5.23").done == ("SGLang 0.5.23", "shims", "sshd")
    assert lab.up(made.layout.home).sglang == "0.5.23"
    assert lab.up(made.layout.home, sglang="0.5.9").sglang == "0.5.9"


def test_a_version_that_does_not_exist_changes_nothing(made: Lab) -> None:
    """pip's answer is shown."""
    with pytest.raises(LabError, match=r"SGLang 9\.9\.9 cannot be had") as caught:
        lab.up(made.layout.home, sglang="9.9.9")

    assert "No matching distribution" in caught.value.why
    assert lab.up(made.layout.home).done == ()


def test_an_interrupted_build_is_done_again(made: Lab) -> None:
    """Without its record the environment counts as half built."""
    made.layout.record.unlink()
    (made.layout.site / DEEPSEEK).unlink()

    again = lab.up(made.layout.home)

    assert "SGLang 0.5.9" in again.done
    assert (made.layout.site / DEEPSEEK).exists()


def test_an_edited_inventory_is_left_to_its_editor(made: Lab) -> None:
    """``up`` says so and goes on."""
    mine = made.inventory.read_text().replace("context-length: 512", "context-length: 256")
    made.inventory.write_text(mine)
    said: list[str] = []

    lab.up(made.layout.home, tp=1, emit=lambda event: said.append(str(event)))

    assert made.inventory.read_text() == mine
    assert any("was edited" in line for line in said)
    made.inventory.unlink()
    assert "tp: 2" in lab.up(made.layout.home, tp=2).inventory.read_text()


def test_a_broken_model_is_made_again(made: Lab) -> None:
    """The same bytes as before."""
    weights = made.model / "model.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-1])

    assert lab.up(made.layout.home).done == ("model",)
    assert weights.read_bytes() == before


@pytest.mark.parametrize("action", [lab.up, lambda home: lab.down(home, purge=True)])
def test_a_folder_that_is_no_lab_is_left_alone(tmp_path: Path, action) -> None:
    """Neither filled nor purged."""
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(LabError, match="not a lab"):
        action(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_down_without_a_lab_is_no_error(tmp_path: Path) -> None:
    """There is nothing to end."""
    assert lab.down(tmp_path / "none", purge=True) == []


def test_pip_that_never_ends_is_ended(tmp_path: Path) -> None:
    """With what it said last, and without a process left."""
    pid = tmp_path / "pid"
    python = program(tmp_path, f"echo $$ > '{pid}'\necho Collecting torch\nsleep 600")

    with pytest.raises(LabError, match=r"not done after 2\.5 s") as caught:
        Pip(python, lambda _: None, 2.5).run("install", task="packages", total=1, what="it failed")

    assert caught.value.why == "Collecting torch"
    assert not psutil.pid_exists(int(pid.read_text()))


def test_pips_errors_are_shown_when_it_fails(tmp_path: Path) -> None:
    """Of all it said, the lines that matter."""
    python = program(tmp_path, "echo Collecting a\necho 'ERROR: no space left on device'\necho a hint\nexit 1")

    with pytest.raises(LabError, match="pip failed") as caught:
        Pip(python, lambda _: None, 30).run("install", task="packages", total=1, what="it failed")

    assert caught.value.why == "ERROR: no space left on device"


def program(folder: Path, script: str) -> Path:
    """An executable that stands where a Python would."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
