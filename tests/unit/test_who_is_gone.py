"""Who is called gone, and who an orphan: only whoever was there, and has lost its launcher."""

from __future__ import annotations

from typing import Any

import pytest

from hsops.diagnose import Verdict, judge
from tests import diagnose_cases

LAUNCHER = {"role": "launcher", "pid": 1000, "cpu": 0}
CHILD = {"role": "child", "pid": 1005, "cpu": 99}
RANK = {"ranks": 1, "state": "R", "cpu": 100}
RANKS = {"ranks": 2, "state": "R", "cpu": 100}
KILLED = {"code": None, "signal": "SIGKILL", "oom": False, "time": 999990.0}
SEEN = {"helpers": {"detokenizer": None}, "rank_pids": {"TP0": 1001, "detokenizer": 1005}}
DIED = {"helpers": {"detokenizer": KILLED}, "rank_pids": {"TP0": 1001, "detokenizer": 1004}}
OOM = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"


def up(processes: list[dict[str, Any]], run: dict[str, Any] | None, *, tp: int = 1, **more: Any) -> Verdict:
    """Of a server whose HTTP is up, and nothing else yet."""
    live = {"silent": 2, "processes": processes, "port": {"open": 1000, "health": 503, "model_info": 200}}
    case = {"tp": tp, "upto": "http", "live": live, **({"run": run} if run is not None else {}), **more}
    return judge(diagnose_cases.evidence(case))


@pytest.mark.parametrize("run", [None, {}, {"rank_pids": {"TP0": 1001}}], ids=["by hand", "unseen", "rank seen"])
def test_a_detokenizer_without_its_title_is_not_gone(run: dict[str, Any] | None) -> None:
    """Of a small model the weights are loaded before it has done its imports."""
    assert up([LAUNCHER, RANK, CHILD], run).name == "starting"


def test_a_detokenizer_that_got_its_title_meanwhile_is_not_gone() -> None:
    """The record was read after the processes: its pid is there, and is a child yet."""
    assert up([LAUNCHER, RANK, CHILD], SEEN).name == "starting"


@pytest.mark.parametrize(
    "processes,run,confidence",
    [([LAUNCHER, RANK], SEEN, "high"), ([LAUNCHER, RANK, CHILD], DIED, "high"), ([LAUNCHER, RANK], None, "medium")],
    ids=["seen before", "recorded", "no child that it could be"],
)
def test_a_detokenizer_that_was_there_is_gone(
    processes: list[dict[str, Any]], run: dict[str, Any] | None, confidence: str
) -> None:
    """Its end is recorded, or its pid was; else all children have titles, and none of them is its."""
    verdict = up(processes, run)

    assert (verdict.name, verdict.confidence) == ("detokenizer-died", confidence)


def test_the_first_of_several_nodes_has_the_detokenizer() -> None:
    """The others answer HTTP, and never had one."""
    assert up([LAUNCHER, RANK], {}, args="nnodes=2, node_rank=1").name != "detokenizer-died"


@pytest.mark.parametrize("step,among", [("distributed-begin", [RANK]), ("http", [RANK])])
def test_a_rank_without_its_title_is_not_gone(step: str, among: list[dict[str, Any]]) -> None:
    """Nor one whose controller of data-parallel ranks has only come that far."""
    verdict = up([LAUNCHER, *among, CHILD, {"role": "data_parallel_controller"}], {}, tp=2, upto=step)

    assert verdict.name not in ("rank-killed", "peer-rank-died", "scheduler-killed-oom", "detokenizer-died")
    assert up([LAUNCHER, RANK, {"role": "detokenizer"}], {}, tp=2, upto=step).name == "rank-killed"


def ended(*apps: dict[str, Any], log: str = "", **run: Any) -> Verdict:
    """Of a server that is gone, on a GPU where others hold memory."""
    live = {"processes": [], "gpu_apps": [{"gpu": 0, "memory": 4022.0, "name": "sglang::scheduler", **a} for a in apps]}
    record = {"phase": "exited", "exit": KILLED, **run}
    return judge(diagnose_cases.evidence({"tp": 1, "upto": "weights", "log": log, "live": live, "run": record}))


KEPT, ALONE = {"pid": 1304, "orphan": False}, {"pid": 1349, "orphan": True}


def test_ranks_of_servers_that_live_are_no_orphans() -> None:
    """Also where the agent did not say whose they are."""
    assert ended(KEPT).name == ended({"pid": 1304}).name == "launcher-killed"


def test_an_orphan_is_named_without_those_that_are_none() -> None:
    """``hsops stop --orphan`` would refuse the others."""
    verdict = ended(KEPT, ALONE)

    assert verdict.name == "orphan-holds-gpu"
    assert "1349" in verdict.remedy and "1304" not in f"{verdict.remedy} {verdict.summary}"


def test_a_cause_comes_before_what_was_left() -> None:
    """In the log, or in the supervisor's record of a rank."""
    killed = ended(ALONE, ranks={"TP0": KILLED}, exit={**KILLED, "signal": "SIGTERM", "time": 999991.0})

    assert ended(ALONE, log=OOM).name == "cuda-oom-kv"
    assert (killed.name, killed.rank) == ("rank-killed", 0)
