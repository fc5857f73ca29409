"""A rank dies at each milestone, in each way: ``make deaths``. test_launch.py has the one that every run pays for."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from hsops.core.milestone_table import BY_ID
from hsops.core.versions import within
from hsops.lab import Lab
from hsops.lab.shims import deaths as planted
from tests.e2e import deaths
from tests.e2e.cli import Cli
from tests.memory_cgroup import memory_cgroup

SGLANG = os.environ.get("HSOPS_DEATHS", "")
RESUME = bool(os.environ.get("RESUME"))  # only those that the page has not
SAID = {
    "kill": "TP1 of tiny was killed by SIGKILL",
    "exit": f"TP1 of tiny ended: exit {planted.EXIT_CODE}",
    "raise": f"PlantedError: {planted.WORDS}",
    "oom": "TP1 of tiny was killed by SIGKILL (out of memory)",
}
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not SGLANG, reason="minutes; make deaths"),
]


@pytest.mark.parametrize("way", planted.WAYS)
@pytest.mark.parametrize("at", deaths.AT)
def test_a_rank_dies(at: str, way: str, lab_for: Callable[[str], Lab], tmp_path: Path) -> None:
    """The launch ends with the rank, and its signal, its exit code or the first line of its exception."""
    if RESUME and way in deaths.read().get(SGLANG, {}).get(at, {}):
        pytest.skip("the page has it")
    lab, stamp = lab_for(SGLANG), tmp_path / "died"
    pattern = "|".join(text.pattern for text in BY_ID[at].texts if within(SGLANG, text.since, text.until))
    env = {planted.VARIABLE: f"TP1 {way} {pattern}", planted.STAMP: str(stamp)}
    with memory_cgroup() if way == "oom" else nullcontext() as narrow:
        env |= {planted.CGROUP: str(narrow)} if narrow else {}
        hsops = Cli(lab.inventory).changed(tmp_path / "inventory.yaml", env=env, patches=[])
        client = hsops.start("launch", "--wait-healthy", "--json")
        assert client.stdout

        last = [(time.time(), line) for line in client.stdout][-1]
        client.communicate()
        took = last[0] - float(stamp.read_text())

        hsops("stop")
    (error,) = json.loads(last[1])["errors"]
    message = error["message"].replace(lab.layout.home.as_posix(), "~")
    print(f"\n{at} {way}: {took:.2f} s, {message}; {error['why']}")
    figures = {"seconds": round(took, 2), "load": round(os.getloadavg()[0]), "message": message}
    deaths.record(SGLANG, at, way, {**figures, "day": time.strftime("%Y-%m-%d"), "cores": os.cpu_count()})
    assert client.returncode == 7
    assert SAID[way] in message, error
    assert took < 10, took  # the figures are in docs/reference/deaths.md; this only tells them from a time-out
