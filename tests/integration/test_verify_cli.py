"""hsops verify as a user runs it: what it tells, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.dump_maker import make, rewrite

HSOPS = [sys.executable, "-m", "hsops"]


def test_json_has_norms_and_findings(tmp_path: Path) -> None:
    """One envelope; the summary is there when a dump is damaged too."""
    for i in range(3):
        make(tmp_path, f"s{i}", [1, 2, 3])
    (tmp_path / "s1.safetensors").write_bytes(b"")

    command = [*HSOPS, "verify", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    envelope = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, envelope["ok"]) == (1, False)
    assert [e["code"] for e in envelope["errors"]] == ["size"]
    assert [(n["where"], n["dumps"]) for n in envelope["data"]["norms"]] == [
        ("boundary 1", 2),
        ("boundary 3", 2),
        ("final, before the norm", 2),
    ]


def test_ctrl_c_ends_it_while_it_reads(tmp_path: Path) -> None:
    """In the middle of a file that takes many minutes: 130, and no traceback."""
    sample = make(tmp_path, "a", [1, 2, 3])
    rewrite(tmp_path, replace(sample, bytes=1 << 40))
    os.truncate(tmp_path / sample.file, 1 << 40)  # a hole: no room is taken
    with subprocess.Popen(
        [*HSOPS, "verify", str(tmp_path), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            first = json.loads(child.stdout.readline())
            child.send_signal(signal.SIGINT)
            _, complaint = child.communicate(timeout=60)
        finally:
            child.kill()

    assert (first["event"], first["done"]) == ("progress", 0)
    assert child.returncode == 130
    assert "Traceback" not in complaint
