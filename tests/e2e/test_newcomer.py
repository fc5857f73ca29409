"""README holds, word for word, for somebody with a clone and an empty home. The tutorial: ``make newcomer``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SCRIPT = Path(__file__).parents[2] / "scripts/newcomer.py"


def test_a_stranger_gets_what_readme_says() -> None:
    """Every block that is marked, in order, and every claim about what it does."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--readme"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=1150,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert done.stdout.endswith("every claim holds\n")
