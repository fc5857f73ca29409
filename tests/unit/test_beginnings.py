"""What ``hsops init USER@HOST`` makes of a look at a host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hsops.core.beginnings import INVENTORY, PLAYBOOK, Seen, beginning, inventory_of, look, parse_look
from hsops.core.inventory_file import load

SEEN = """\
python - /usr/bin/python3
python 0.5.9 /root/venv/bin/python
python 0.5.4 /opt/old/bin/python
gpus 8 -
shm 264241152 /dev/shm
"""


def test_the_interpreter_with_sglang_is_taken() -> None:
    """The first that has it; the others are named."""
    assert parse_look(SEEN) == Seen("/root/venv/bin/python", "0.5.9", ("/opt/old/bin/python",), 8, 264241152 * 1024)
    assert parse_look("python - /usr/bin/python3\ngpus 0 -\n") == Seen("/usr/bin/python3", "", (), 0, 0)
    assert parse_look("motd of the day\n\n") == Seen("", "", (), 0, 0)


@pytest.mark.parametrize("ssh", ["root@gpu-box", "gpu-box:2222", "root@10.0.0.7", "ssh://root@gpu-box", "Box_1"])
@pytest.mark.parametrize("model", ["", "/models/Kimi-K2.5", "deepseek-ai/DeepSeek-V3", "/m/4bit model/"])
def test_what_is_written_is_an_inventory(ssh: str, model: str, tmp_path: Path) -> None:
    """Whatever the host and the model are called."""
    (tmp_path / "inventory.yaml").write_text(inventory_of(ssh, parse_look(SEEN), model=model))

    read = load(tmp_path / "inventory.yaml")

    ((_, host),) = read.hosts.items()
    ((name, server),) = read.servers.items()
    assert (host.ssh, host.python, server.tp, read.default) == (ssh, "/root/venv/bin/python", 8, name)


def test_what_is_written_asks_who_trains() -> None:
    """Before a night of extracting: SpecForge reads other final states than speculators."""
    text = inventory_of("root@gpu-box", parse_look(SEEN), model="")

    (line,) = [line for line in text.splitlines() if "final:" in line]
    assert "CHANGE" in line and "SpecForge: both, with three boundaries" in line


def test_the_look_is_a_script_that_any_shell_takes(tmp_path: Path) -> None:
    """In a home without anything it still answers."""
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    done = subprocess.run(look().argv, env=env, capture_output=True, text=True, timeout=60, check=False)

    assert "gpus" in done.stdout and done.stderr == ""


def test_the_first_files_are_those_of_the_clone() -> None:
    """Out of a clone; the wheel is another test's."""
    root = Path(__file__).parents[2]

    assert beginning(INVENTORY) == (root / INVENTORY).read_text()
    assert beginning(PLAYBOOK) == (root / PLAYBOOK).read_text()
