"""hsops verify as a user runs it: what it tells, and Ctrl-C."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

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


def test_prompts_of_every_kind(tmp_path: Path) -> None:
    """Packed through standard input, a dataset; where there are no token ids to compare it says so."""
    folder = tmp_path / "dumps"
    for i in range(3):
        make(folder, f"s{i}", [1, 2, 3])
    table = pa.table({"id": ["s0", "s1", "s2"], "input_ids": [[1, 2, 3], [1, 2, 3], [1, 2, 4]]})
    pq.write_table(table, tmp_path / "p.parquet")
    lines = b"".join(b'{"id": "s%d", "input_ids": [1, 2, 3]}\n' % i for i in range(3))
    texts = lines.replace(b'"input_ids": [1, 2, 3]', b'"text": "x"')

    def verify(prompts: str, stdin: bytes) -> list[dict[str, Any]]:
        command = [*HSOPS, "verify", str(folder), "--json", "--prompts", prompts]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
        return [json.loads(line) for line in done.stdout.splitlines()]

    packed, bare, dataset = (
        verify("-", gzip.compress(lines)),
        verify("-", texts),
        verify(str(tmp_path / "p.parquet"), b""),
    )

    assert (packed[-1]["data"]["compared"], packed[-1]["ok"]) == (3, True)
    assert (bare[-1]["data"]["compared"], bare[-1]["ok"]) == (0, True)
    assert ["3 prompts have no token ids" in one["message"] for one in bare if one.get("event") == "note"] == [True]
    assert [(error["code"], error["file"]) for error in dataset[-1]["errors"]] == [("token-ids", "s2.safetensors")]


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
