"""``hsops lab down`` against a real SGLang."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from hsops import lab as labs
from hsops.core.inventory import ServerSpec
from hsops.core.inventory_file import load
from hsops.lab import Lab

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def command_line(lab: Lab, server: ServerSpec) -> str:
    """How a person would start the server by hand."""
    flags = [f"--{name}" + ("" if value is True else f" {value}") for name, value in server.args.items()]
    env = [f"{name}={shlex.quote(value)}" for name, value in server.env.items()]
    words = [*env, lab.layout.python, "-m", "sglang.launch_server", "--model-path", server.model, *flags]
    return " ".join(["env", *map(str, words), f"--tp-size {server.tp} --host 127.0.0.1 --port 1"])


def shared_memory(lab: Lab) -> set[Path]:
    """Segments in /dev/shm that the lab's processes have mapped."""
    maps = "".join(_maps(process.pid) for process in labs.status(lab.layout.home).processes)
    return {Path(found) for found in re.findall(r"/dev/shm/psm_\w+", maps)}


def _maps(pid: int) -> str:
    """Empty for one that has ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_down_leaves_no_process_of_a_starting_server(tmp_path: Path) -> None:
    """Ranks that have retitled themselves included; their shared memory is given back."""
    lab = labs.up(tmp_path / "lab")
    server = load(lab.inventory).servers["tiny"]
    argv = ["ssh", "-F", str(lab.layout.ssh_config), "lab", f"setsid {command_line(lab, server)} 2>&1"]

    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout
        assert next(line for line in session.stdout if "TP1] Load weight end" in line)
        segments = shared_memory(lab)
        ended = labs.down(lab.layout.home)

    titles = " ".join(process.title for process in ended)
    assert "sglang::scheduler_TP0" in titles and "sglang::scheduler_TP1" in titles
    assert labs.status(lab.layout.home).processes == ()
    assert segments and not any(segment.exists() for segment in segments)
