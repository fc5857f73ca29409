"""Labs with a real SGLang, one a version and session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from hsops import lab as labs
from hsops.lab import Lab


@pytest.fixture(scope="session")
def lab_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """A function from a version of SGLang to a lab with it, up, without a fault, for the whole session.

    A test that arms a fault (``hsops.lab.up(lab.layout.home, fault=...)``) disarms it again.
    """
    base, homes = tmp_path_factory.mktemp("labs"), list[Path]()

    @cache
    def lab_for(version: str) -> Lab:
        homes.append(base / version)
        return labs.up(base / version, sglang=version)

    yield lab_for
    for home in homes:
        labs.down(home, purge=True)


@pytest.fixture(scope="session")
def lab(lab_for: Callable[[str], Lab]) -> Lab:
    """The lab with SGLang 0.5.9."""
    return lab_for("0.5.9")


@pytest.fixture(scope="session")
def lab_inventory(lab: Lab) -> Path:
    """Its inventory.yaml, for ``hsops -i``."""
    return lab.inventory
