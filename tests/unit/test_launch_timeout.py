"""What a launch says when its ``--timeout`` is over."""

from __future__ import annotations

import pytest

from hsops.launch.wait import _too_late
from tests.unit.test_launch_watch import a_watch, feed


@pytest.mark.parametrize("at,moved", [(3.0, "something moved a moment ago"), (20.0, "nothing has moved for 19 s")])
def test_a_wait_that_is_over_says_whether_anything_moves(at: float, moved: str) -> None:
    """A short ``--timeout`` ends before a silence is a stall; then nobody may say that the server moves."""
    watch = a_watch(floor=60.0)
    feed(watch, b"[2026-11-29 17:40:25] server_args=ServerArgs()\n", now=1.0)

    late = _too_late(watch, at, "lab", at)

    assert late.why == f"it still runs; {moved}, and 60 s are allowed for this step"
