"""``hsops baseline`` on a real run of a victim that logs, beside good runs that are on the host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hsops.core.baseline import Baseline, GoodRun, good_run
from hsops.core.launched import launched
from hsops.core.milestones import summarize
from hsops.core.runs import Run
from hsops.remote.agent import Agent
from hsops.remote.runs import list_runs, write_baseline
from tests.running import agent_here, start

STAMP = "[2026-11-30 10:00:00 TP{}]"
BEGIN, END = "Load weight begin. avail mem=1.0", "Load weight end. avail mem=0.5"


@dataclass(frozen=True)
class Host:
    """A folder with an inventory, and the agent that its commands use."""

    folder: Path
    agent: Agent

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hsops", "baseline", *words]
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False
        )

    def ran(self, *lines: str) -> Run:
        """A run that said this and ended."""
        run = start(self.agent, *(f"say={line}" for line in lines), "exit=0")
        with self.agent.stream("run-follow", run=run.id, offset=0) as events:
            assert list(events)[-1]["kind"] == "result"
        return next(found for found in list_runs(self.agent) if found.id == run.id)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    state = tmp_path / "state"
    (tmp_path / "inventory.yaml").write_text(
        f"hosts:\n  here: {{ ssh: local, python: {sys.executable}, state_dir: {state} }}\n"
        "servers:\n  victim: { host: here, model: /m, tp: 2 }\n"
    )
    with agent_here(state) as agent:
        yield Host(tmp_path, agent)


def said(*messages: str) -> list[str]:
    """Each by both ranks."""
    return [f"{STAMP.format(rank)} {text}" for text in messages for rank in (0, 1)]


def good(run: Run, *lines: str) -> GoodRun:
    """What a launch that logged this, and was like ``run``, would have left."""
    summary = summarize("".join(f"{line}\n" for line in lines).encode(), tp=2)
    return good_run(
        summary, run="1130-090000-good", spec_hash="s", sglang="", started=summary.first_time or 0.0,
        now=(summary.first_time or 0.0) + 30, utc_offset=0.0, launched=launched(run),
    )  # fmt: skip


def test_a_run_beside_a_good_one(host: Host) -> None:
    """Listed, shown, and the first line that is unlike it, for people and for programs."""
    run = host.ran(*said(BEGIN), f"{STAMP.format(0)} {END}", f"{STAMP.format(0)} GPU 3 fell off the bus, api_key=sk-1")
    write_baseline(host.agent, Baseline("victim", (good(run, *said(BEGIN, END)),)))

    listed, shown, told = host("list"), host("show"), host("compare")
    written = host("compare", "--json").stdout
    data = json.loads(written)["data"]

    assert (listed.returncode, shown.returncode, told.returncode) == (0, 0, 0), told.stderr
    assert launched(run).key in listed.stdout and "1 good run  4 lines" in listed.stdout
    assert "weights-begin" in shown.stdout and "1130-090000-good" in shown.stdout
    assert f"TP1   line 2, the last; next would be: {END.replace('0.5', '#')}   (line 4 there)" in told.stdout
    assert "TP0   line 4, new: GPU 3 fell off the bus, api_key=***" in told.stdout and "sk-1" not in written
    assert [(one["rank"], one["what"], one["line"]) for one in data["divergences"]] == [
        ("TP0", "new", 4),
        ("TP1", "stops", 2),
    ]
    assert data["to"] == {"key": launched(run).key, "runs": ["1130-090000-good"], "differs": []}


def test_nothing_to_compare_with(host: Host) -> None:
    """No baseline, none of that name: said in a sentence, with what to do."""
    run = host.ran(*said(BEGIN))

    empty, none = host("list"), host("compare", run.id)
    write_baseline(host.agent, Baseline("victim", (good(run, *said(BEGIN)),)))
    unknown, other = host("show", "--key", "nope"), host("compare", "--to", "nope")

    assert empty.returncode == 0 and "no good run of victim is known" in empty.stdout
    assert none.returncode == 1 and "no other good run of victim" in none.stderr
    assert unknown.returncode == 2 and f"keys: {launched(run).key}" in unknown.stderr
    assert other.returncode == 2 and "hsops baseline list" in other.stderr
    assert not any("Traceback" in done.stderr for done in (none, unknown, other))
