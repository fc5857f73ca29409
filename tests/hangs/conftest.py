"""Which servers: half an hour of them is for those who ask for it (``make hangs``)."""

from __future__ import annotations

import os

import pytest

from tests.hangs.cases import SESSIONS
from tests.hangs.results import read

ASKED = os.environ.get("HSOPS_HANGS", "").split()  # "all", or sessions
TP = int(os.environ.get("HSOPS_HANGS_TP", "2"))
RESUME = bool(os.environ.get("RESUME"))  # only servers with a state that the page lacks or that was judged wrongly


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what nobody asked for."""
    known = read().get(str(TP), {})
    done = {
        s.name
        for s in SESSIONS
        if (s.cases or s.name in known) and all(known.get(case.id, {}).get("right") for case in s.cases)
    }
    for item in items:
        if "tests/hangs/test_" not in item.nodeid:
            continue
        name = item.callspec.params["session"].name  # type: ignore[attr-defined]
        if not ASKED:
            item.add_marker(pytest.mark.skip(reason="make hangs runs these"))
        elif name not in ASKED and (ASKED != ["all"] or name == "quiet"):
            item.add_marker(pytest.mark.skip(reason=f"not among {' '.join(ASKED)}"))
        elif RESUME and name in done:
            item.add_marker(pytest.mark.skip(reason="the page has it"))
