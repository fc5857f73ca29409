"""Fixtures for tests that break things."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hsops.core.inventory import HostSpec


@pytest.fixture
def gated(tmp_path: Path) -> Callable[..., HostSpec]:
    """A function that puts a gate before a host's Python: ``gated(spec, "hold 1000", "cut 5")``, one line a stream."""

    def gate(spec: HostSpec, *plan: str) -> HostSpec:
        script = tmp_path / "gate" / "python"
        script.parent.mkdir(exist_ok=True)
        source = Path(__file__).with_name("gate.py")
        script.write_text(f"#!{sys.executable}\n{source.read_text()}")
        script.chmod(0o755)
        (script.parent / "gate.plan").write_text("".join(line + "\n" for line in plan))
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
        changes = {"python": str(script), "state_dir": str(tmp_path / "state"), "channel": "ssh"}  # what it stands in
        return spec.model_copy(update=changes)

    return gate


@pytest.fixture
def this_machine() -> HostSpec:
    """This machine as a host without SSH."""
    return HostSpec(name="here", ssh="local", python=sys.executable)
