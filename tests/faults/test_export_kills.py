"""hsops export killed in the middle: what is there is whole, and the next run completes it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.dump_maker import make
from tests.torch_reader import read_torch_file

DUMPS, TOKENS, HIDDEN = 120, 64, 512


def journaled(to: Path) -> list[str]:
    """Files that the journal calls whole."""
    try:
        lines = (to / "hsops-export.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line)["file"] for line in lines if line.endswith("}") and '"file"' in line]


def signalled(command: list[str], to: Path, number: signal.Signals) -> tuple[int, str]:
    """How an export ended that was sent a signal when it had written three files, and what it complained of."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        deadline = time.monotonic() + 60
        while len(journaled(to)) < 3 and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        child.send_signal(number)
        _, complaint = child.communicate(timeout=60)
    return child.returncode, complaint


@pytest.mark.parametrize("number, code", [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_what_a_kill_leaves_is_whole_and_is_completed(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Every file that has its name is a whole one, journaled or not; the second run writes only the others."""
    dumps = tmp_path / "dumps"
    for i in range(DUMPS):
        make(dumps, f"s{i:03}", range(TOKENS), boundaries=(1, 2, 3), final="both", hidden_size=HIDDEN, seed=i)
    command = [sys.executable, "-m", "hsops", "--json", "export", str(dumps), "--format", "specforge"]
    command += ["--mask", "all", "--to"]
    for attempt in range(5):  # once more, where all was written before this process came to send the signal
        to = tmp_path / f"to{attempt}"
        ended, complaint = signalled([*command, str(to)], to, number)
        if ended != 0:
            break
    command.append(str(to))
    left = list(to.rglob("data_*.ckpt"))
    for path in left:
        assert read_torch_file(path)["hidden_state"].shape == (1, TOKENS, HIDDEN)
    whole = len(journaled(to))
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert ended == code
    assert "Traceback" not in complaint
    assert 3 <= whole <= len(left) < DUMPS
    data = json.loads(done.stdout.splitlines()[-1])["data"]
    assert (done.returncode, data["complete"], data["made"]["written"]) == (0, True, DUMPS - whole)
    assert not list(to.rglob(".*.part"))
    for i in range(DUMPS):
        got = read_torch_file(to / f"rows_0-2000/data_{i}.ckpt")
        assert np.array_equal(got["hidden_state"][0], load_file(dumps / f"s{i:03}.safetensors")["last_hidden_states"])
