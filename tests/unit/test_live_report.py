"""What ``hsops verify --live`` tells people, scripts and playbooks; and dumps as numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsops.core.errors import BadDataError, ConfigError
from hsops.playbook.load import load
from hsops.playbook.model import Verify
from hsops.render.verify_live import outcome
from hsops.verify.live.checks import FAIL, KINDS, PASS, Check, skipped
from hsops.verify.live.measure import read_states, slots_of
from hsops.verify.live.verify import Report
from tests.dump_maker import make


def report(*checks: Check) -> Report:
    """Of two ranks."""
    return Report("1130-011800-906d", 2, 300, ("boundary 1", "final"), "BF16", checks, 12.34)


def test_a_failure_is_exit_1_and_says_what_to_do() -> None:
    """In the lines, and in the envelope's errors."""
    states = [{"slot": "boundary 1", "median": 0.6, "largest": 0.9, "row": 3, "above": 300, "cosine": 0.7}]
    failed = Check("batch", FAIL, "boundary 1: median 0.6", {"states": states, "equal": False}, "median <= 0.1")

    found = outcome(report(Check("ranks", PASS, "5 dumps"), failed), server="tiny", host="lab")

    assert found.exit_code == 1
    assert [error["message"] for error in found.errors] == ["alone and in a large batch: boundary 1: median 0.6"]
    assert found.errors[0]["fix"] == KINDS["batch"].fix
    lines = list(found.lines)
    assert lines[0].startswith(
        "tiny on lab · run 1130-011800-906d · TP 2 · boundary 1, final in BF16 · a prompt of 300"
    )
    assert "            boundary 1: median 0.6 · largest 0.9 · cosine >= 0.700000" in lines
    assert "          limit: median <= 0.1" in lines
    assert any(line.startswith("          do: ") for line in lines)
    assert lines[-1] == "1 passed · 1 failed · 0 skipped · 12.3 s"


def test_a_skipped_check_is_said_and_is_no_failure() -> None:
    """A rerun would skip it again, so it is not exit 3; scripts read the status."""
    found = outcome(report(skipped("lm_head", "no weights")), server="tiny", host="lab")

    assert (found.exit_code, found.errors) == (0, ())
    assert found.data["checks"][0]["status"] == "skipped"
    assert (found.data["pass"], found.data["fail"], found.data["skipped"]) == (0, 0, 1)
    assert list(found.lines)[-1] == "0 passed · 0 failed · 1 skipped · 12.3 s"


def test_equal_states_need_no_table() -> None:
    """Zeros for every state say nothing."""
    equal = Check("repeat", PASS, "bit for bit equal", {"states": [{"slot": "final"}], "equal": True})

    assert len(list(outcome(report(equal), server="tiny", host="lab").lines)) == 3


@pytest.mark.parametrize("dtype, error", [("F32", 0), ("BF16", 2**-7), ("F16", 2**-10)])
def test_dumps_are_read_as_numbers(dtype: str, error: float, tmp_path: Path) -> None:
    """Whatever they are stored as, [T, slots, H]."""
    states = np.random.default_rng(0).standard_normal((3, 3, 8), dtype=np.float32)
    sample = make(tmp_path, "a", [1, 2, 3], dtype=dtype, states=states)

    found = read_states(tmp_path / sample.file, sample)

    assert found.dtype == np.float32
    assert np.all(np.abs(found - states) <= error * np.abs(states))


def test_the_state_after_the_norm_is_one_more(tmp_path: Path) -> None:
    """``final: both``; and a manifest that says otherwise than the file is told."""
    both = make(tmp_path, "a", [1, 2, 3], final="both")

    assert slots_of(both) == ("boundary 1", "boundary 3", "final", "final after the norm")
    assert read_states(tmp_path / both.file, both).shape == (3, 4, 8)
    without = make(tmp_path, "b", [1, 2, 3])
    with pytest.raises(BadDataError, match="does not hold"):
        read_states(tmp_path / without.file, both)


def test_a_playbook_asks_for_one_of_both(tmp_path: Path) -> None:
    """Dumps in a folder, or the server itself."""
    path = tmp_path / "p.yaml"
    path.write_text("name: x\nsteps:\n  - verify: {live: true}\n")
    assert load(path, {}).steps == (Verify(live=True),)

    path.write_text("name: x\nsteps:\n  - verify: {live: true, dir: hs}\n  - verify\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert len(caught.value.faults) == 2
    assert "live: true alone" in str(caught.value)
