"""Which orphans are not ours to end. Real processes in a made-up census of runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from hsops.agent import procs
from hsops.agent.ending import until
from hsops.agent.orphans import _Seen


@pytest.fixture
def seen() -> _Seen:
    """No run is known."""
    found = _Seen.__new__(_Seen)
    found.ours, found.others, found.lost, found.everyone = {}, {}, set(), procs.census()
    return found


@pytest.fixture
def child() -> Iterator[int]:
    """Below the orphan."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def test_one_above_a_run_that_is_looked_after(seen: _Seen, child: int) -> None:
    """A subreaper adopts what loses its parent below it, also the supervisor of a run and all that it has."""
    free = seen._refused(os.getpid(), "no-launcher", [child])
    seen.ours = {child: "1130-120000-abcd"}
    ours = seen._refused(os.getpid(), "no-launcher", [child])
    seen.lost = {"1130-120000-abcd"}
    lost = seen._refused(os.getpid(), "no-supervisor", [child])
    seen.ours, seen.others = {}, {child: "1130-120000-abcd"}
    others = seen._refused(os.getpid(), "no-launcher", [child])

    assert free == lost == ""
    assert f"pid {child} below it" in ours and ours == others


def test_one_above_a_supervisor(seen: _Seen) -> None:
    """Also of a run that has no process yet."""
    with subprocess.Popen(["agent.pyz run-exec", "60"], executable="/bin/sleep") as process:
        try:
            until(lambda: "run-exec" in procs.title(process.pid), 60.0)  # empty for a moment after exec
            refused = seen._refused(os.getpid(), "no-launcher", [process.pid])
        finally:
            process.kill()

    assert "supervisor" in refused
