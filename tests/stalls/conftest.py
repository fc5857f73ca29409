"""Which launches: half an hour of servers is for those who ask for it (``make stalls``)."""

from __future__ import annotations

import os

import pytest

from tests.stalls.results import read

ASKED = os.environ.get("HSOPS_STALLS", "").split()  # "all", or cases
RESUME = bool(os.environ.get("RESUME"))  # only those that the page has not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what nobody asked for."""
    known = read()
    for item in items:
        if "tests/stalls/test_" not in item.nodeid:
            continue
        case = item.callspec.params["case"].id  # type: ignore[attr-defined]
        if not ASKED:
            item.add_marker(pytest.mark.skip(reason="make stalls runs these"))
        elif ASKED != ["all"] and case not in ASKED:
            item.add_marker(pytest.mark.skip(reason=f"not among {' '.join(ASKED)}"))
        elif RESUME and case in known:
            item.add_marker(pytest.mark.skip(reason="the page has it"))
