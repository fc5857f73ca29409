"""Minutes of real servers: for those who ask for them. HSOPS_SUPERVISION has the words: tp8, busy, cut, cycles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsops import lab as labs
from hsops.lab import Lab
from tests.e2e.cli import Cli

ASKED = os.environ.get("HSOPS_SUPERVISION", "").split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what nobody asked for."""
    for item in items:
        word = Path(item.path).stem.removeprefix("test_")
        if Path(item.path).parent == Path(__file__).parent and word not in ASKED:
            item.add_marker(pytest.mark.skip(reason=f"minutes of a real server; make {word}"))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with SGLang 0.5.9; HSOPS_SUPERVISION_HOME keeps it, for work in pieces."""
    kept = os.environ.get("HSOPS_SUPERVISION_HOME")
    home = Path(kept) if kept else tmp_path_factory.mktemp("labs") / "lab"
    yield labs.up(home, sglang="0.5.9", tp=2)
    labs.down(home, purge=not kept)


@pytest.fixture
def hsops(lab: Lab, tmp_path: Path) -> Iterator[Cli]:
    """hsops on the lab, its server without patches; nothing runs afterwards."""
    cli = Cli(lab.inventory).changed(tmp_path / "inventory.yaml", patches=[])
    yield cli
    assert cli("stop").returncode == 0
