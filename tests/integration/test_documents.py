"""The blocks of the documents that need neither a host nor a lab are run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import PAGES, ROOT, Block, blocks

RUN_HERE = [block for page in PAGES for block in blocks(page) if block.where == "here"]
LOG = ROOT / "tests/cases/logs/healthy-0.5.23-tp2.log"


@pytest.mark.parametrize("block", RUN_HERE, ids=lambda block: block.place)
def test_a_block_runs(block: Block, tmp_path: Path) -> None:
    """In a folder with a log that stops in the middle; it ends as the page says, without a traceback."""
    script = tmp_path / "bin/hsops"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hsops "$@"\n')
    script.chmod(0o755)
    text, end = LOG.read_text(), "Load weight end"
    (tmp_path / "server.log").write_text(text[: text.index(end)])
    env = {
        **os.environ,
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
    }

    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=tmp_path, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100, check=False,
    )  # fmt: skip

    assert done.returncode == block.exit, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
