"""The blocks of the documents that need no SGLang are run as they stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.documents import PAGES, ROOT, Block, blocks
from tests.dump_maker import make
from tests.hosts import Server

ALL = [block for page in PAGES for block in blocks(page)]
RUN_HERE = [block for block in ALL if block.where == "here"]
ON_A_HOST = [block for block in ALL if block.where == "host"]
LOG = ROOT / "tests/cases/logs/healthy-0.5.23-tp2.log"
SERVER = """\
servers: { tiny: { host: HOST, model: /m, patches: [hs-dump] } }
patches: { hs-dump: { boundaries: [2, 4, 6], final: both } }
"""
PROMPTS = 6


@pytest.mark.parametrize("block", RUN_HERE, ids=lambda block: block.place)
def test_a_block_runs(block: Block, tmp_path: Path) -> None:
    """In a folder with a log that stops in the middle; it ends as the page says, without a traceback."""
    text, end = LOG.read_text(), "Load weight end"
    (tmp_path / "server.log").write_text(text[: text.index(end)])

    type_in(block.text, tmp_path, expect=block.exit)


@pytest.mark.parametrize("block", ON_A_HOST, ids=lambda block: block.place)
def test_a_block_runs_on_a_host(
    block: Block, tmp_path: Path, server: Server, write_inventory: Callable[..., Path]
) -> None:
    """Over a real sshd, whose dump folder has what an extract of train.jsonl leaves; fetched, if it does not fetch."""
    spec = server.spec.model_copy(update={"dumps": str(tmp_path / "there")})
    write_inventory(spec, more=SERVER.replace("HOST", spec.name))
    lines = []
    for i in range(PROMPTS):
        tokens = [*range(3, 9 + i)]
        make(tmp_path / "there/tiny", f"p{i}", tokens, boundaries=(2, 4, 6), final="both")
        lines.append(json.dumps({"id": f"p{i}", "input_ids": tokens, "loss_mask": [1] * len(tokens)}) + "\n")
    (tmp_path / "train.jsonl").write_text("".join(lines))
    if "hsops fetch" not in block.text:
        type_in("hsops fetch --to hs", tmp_path, expect=0)

    type_in(block.text, tmp_path, expect=block.exit)


def test_there_are_blocks_of_each_kind() -> None:
    """Or the tests above would hold of nothing."""
    assert len(RUN_HERE) > 2 and len(ON_A_HOST) > 4


def type_in(text: str, folder: Path, *, expect: int) -> None:
    """Lines in a shell that has ``hsops``; they end as expected, without a traceback."""
    script = folder / "bin/hsops"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hsops "$@"\n')
    script.chmod(0o755)
    path = f"{script.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder, env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100, check=False,
    )  # fmt: skip

    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
