"""The words by which a log is read are those of the releases that the signatures name: ``make flags``.

Read from the wheels; nothing is installed or run.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from hsops.core.versions import within
from hsops.diagnose.signature_table import SIGNATURES
from hsops.diagnose.signatures import DIED, WARMUP_FAILED
from hsops.lab import wheels
from tests.matrix.test_releases import RELEASES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
WANTED = os.environ.get("HSOPS_MATRIX", "")
SAID = (  # class, what the source says, from and to which release
    ("port-in-use", "is in use, but we could not find the process", "0.5.4", "0.5.23"),
    ("host-memory-check-false", "Not enough host memory available. Requesting", "0.5.4", "0.5.23"),
    ("cuda-oom-graph-capture", "Capture cuda graph failed:", "0.5.4", "0.5.23"),
    ("cuda-oom-graph-capture", "Capture prefill CUDA graph failed:", "0.5.14", "0.5.23"),
    ("cuda-oom-kv", "Not enough memory. Please try", "0.5.4", "0.5.23"),
    ("cuda-oom-kv", "larger than the profiled value", "0.5.4", "0.5.23"),
    ("gpu-occupied", "memory capacity is unbalanced", "0.5.4", "0.5.23"),
    ("false-gpu-occupied", "memory capacity is unbalanced", "0.5.4", "0.5.23"),
    ("warmup-via-proxy", "{res=}", "0.5.4", "0.5.23"),
    ("watchdog-timeout", "Watchdog timeout ({self.watchdog_timeout=})", "0.5.4", "0.5.6"),
    ("watchdog-timeout", "({self.watchdog_timeout=}, {self.soft=})", "0.5.7", "0.5.23"),
    ("rank-straggler-load", "could finish the model loading, but there are other ranks", "0.5.4", "0.5.23"),
    ("scheduler-killed-oom", "scheduler is dead. Please check if there are relevant logs", "0.5.4", "0.5.9"),
    ("scheduler-killed-oom", "scheduler died during initialization ", "0.5.10", "0.5.23"),
    ("scheduler-died-exception", "Scheduler hit an exception: ", "0.5.4", "0.5.23"),
    ("warmup-failed", "Initialization failed. warmup error", "0.5.4", "0.5.23"),
)


@pytest.mark.parametrize("sglang", [v for v in RELEASES if WANTED == "all" or v in WANTED.split()] or ["none"])
def test_a_release_says_so(sglang: str) -> None:
    """Each text is in a release exactly when it is told to be."""
    if sglang == "none":
        pytest.skip("minutes; make flags")
    with zipfile.ZipFile(wheels.ensure(sglang, Path(sys.executable), lambda _event: None)) as wheel:
        names = [name for name in wheel.namelist() if name.startswith("sglang/srt/") and name.endswith(".py")]
        code = "\0".join(wheel.read(name).decode("utf-8", "replace") for name in names)

    told = {text: within(sglang, since, until) for _, text, since, until in SAID}

    assert {text: text in code for text in told} == told


def test_every_signature_of_sglang_is_held_against_the_wheels() -> None:
    """By its class; and its own range is the one that all of its texts make together."""
    ranges = {row.name: row.versions for row in (*SIGNATURES, DIED, WARMUP_FAILED) if row.versions}

    assert set(ranges) == {name for name, *_ in SAID}
    for name, texts in ranges.items():
        assert texts.endswith("-0.5.23") or texts.partition(":")[0].endswith("-0.5.23"), name
