"""Which releases, and what they are held against."""

from __future__ import annotations

import os

import pytest

from tests.fidelity import prompts
from tests.fidelity.truth import Truth, of_the_tiny_model

ASKED = os.environ.get("HSOPS_MATRIX", "")  # "all", or versions separated by spaces; set by `make matrix`


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An hour of servers is for those who ask for it; one release for those who name it."""
    chosen = ASKED.split()
    for item in items:
        if "tests/matrix/test_" not in item.nodeid or not hasattr(item, "callspec"):
            continue
        sglang = item.callspec.params["sglang"]
        if not chosen:
            item.add_marker(pytest.mark.skip(reason="make matrix runs these"))
        elif chosen != ["all"] and sglang not in chosen:
            item.add_marker(pytest.mark.skip(reason=f"not among {ASKED}"))


@pytest.fixture(scope="session")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """Every state of every prompt by transformers."""
    return of_the_tiny_model(prompts.short(), tmp_path_factory.mktemp("truth"))
