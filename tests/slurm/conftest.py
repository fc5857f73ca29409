"""Minutes of a real SGLang in a real Slurm: for those who ask for them. HSOPS_SLURM=all: make slurm."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsops import lab as labs
from hsops.lab import Lab
from tests.slurm_cluster import Cluster, cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what nobody asked for."""
    for item in items:
        if Path(item.path).parent == Path(__file__).parent and not os.environ.get("HSOPS_SLURM"):
            item.add_marker(pytest.mark.skip(reason="minutes of a real server; make slurm"))


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab with SGLang 0.5.9; HSOPS_SLURM_HOME keeps it, for work in pieces."""
    kept = os.environ.get("HSOPS_SLURM_HOME")
    home = Path(kept) if kept else tmp_path_factory.mktemp("labs") / "lab"
    yield labs.up(home, sglang="0.5.9", tp=1)
    labs.down(home, purge=not kept)


@pytest.fixture
def slurm() -> Iterator[Cluster]:
    """A controller and two nodes, whose processes and networks are apart from this one's."""
    with tempfile.TemporaryDirectory(prefix="hsops-slurm-") as folder, cluster(Path(folder) / "s") as made:
        yield made
