"""What export writes for SpecForge is what torch itself reads, by its safe reader, mapped or not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hsops.core.events import ignore
from hsops.export.torch_file import Entry, write_torch_file
from hsops.lab import packages

READ = """
import json, sys, torch
for mapped in (False, True):
    read = torch.load(sys.argv[1], weights_only=True, mmap=mapped)
    told = {k: [str(v.dtype), list(v.shape), v.data_ptr() % 64, v.view(-1).view(torch.uint8).tolist()] for k, v in read.items()}
    print(json.dumps(told))
"""  # noqa: E501


@pytest.mark.timeout(1200)  # the lab's packages, when this is the first test that needs them
def test_torch_reads_back_every_dtype_equal(tmp_path: Path) -> None:
    """Keys in their order, dtypes, shapes, bytes; every storage aligned as torch's own."""
    python = packages.ensure(ignore) / "bin" / "python"
    content = {
        "input_ids": ("I64", "torch.int64", (3,), np.array([5, -1, 2**40], "<i8")),
        "hidden_state": ("BF16", "torch.bfloat16", (1, 3, 5), np.arange(15, dtype="<u2")),
        "half": ("F16", "torch.float16", (2, 2), np.arange(4, dtype="<f2")),
        "float": ("F32", "torch.float32", (1,), np.array([1.5], "<f4")),
    }
    entries = [
        Entry(key, dtype, shape, [data[:1].data, data[1:].data]) for key, (dtype, _, shape, data) in content.items()
    ]
    write_torch_file(tmp_path / "x.ckpt", entries)

    command = [str(python), "-c", READ, str(tmp_path / "x.ckpt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)

    expected = {key: [name, list(shape), 0, list(data.tobytes())] for key, (_, name, shape, data) in content.items()}
    for line in done.stdout.splitlines():
        assert json.loads(line) == expected
        assert list(json.loads(line)) == list(expected)
    assert len(done.stdout.splitlines()) == 2
