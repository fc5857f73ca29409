"""Who is called gone, and who an orphan: only whoever was there, and has lost its launcher."""

from __future__ import annotations

from collections.abc import Mapping
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


def ended(
    *apps: dict[str, Any],
    log: str = "",
    gpus: int = 0,
    visible: str | None = None,
    case: Mapping[str, Any] = {},
    **run: Any,
) -> Verdict:
    """Of a server that is gone, on a GPU where others hold memory; ``gpus`` of 143,771 MiB each, if any are seen."""
    seen = [{"count": gpus, "memory_total": 143771.0}] if gpus else []
    live: dict[str, Any] = {
        "processes": [],
        "gpu_apps": [{"gpu": 0, "memory": 4022.0, "name": "sglang::scheduler", **a} for a in apps],
    }
    live |= {"gpus": seen, "visible": visible}
    record = {"phase": "exited", "exit": KILLED, **run}
    return judge(diagnose_cases.evidence({"tp": 1, "upto": "weights", "log": log, "live": live, "run": record, **case}))


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


TORCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.\n"


def text_of(verdict: Verdict) -> str:
    """Its evidence, as lines."""
    return "\n".join(f"{f.source}: {f.text}" for f in verdict.evidence)


@pytest.mark.parametrize("log, cause", [(OOM, "cuda-oom-kv"), (TORCH, "cuda-oom-weights")])
@pytest.mark.parametrize(
    "gpus, memory, confidence", [(1, 75000.0, "high"), (1, 15000.0, "medium"), (2, 75000.0, "medium")]
)
def test_memory_that_an_orphan_holds_is_why_it_ran_out(
    log: str, cause: str, gpus: int, memory: float, confidence: str
) -> None:
    """A larger mem-fraction-static, which the log asks for, would not help. Of two GPUs it may have used the other."""
    verdict = ended(KEPT, {**ALONE, "memory": memory}, log=log, gpus=gpus, case={"upto": "weights-begin"})

    assert (verdict.name, verdict.confidence, verdict.alternatives) == ("orphan-holds-gpu", confidence, (cause,))
    assert verdict.remedy.startswith("hsops stop --orphan 1349") and "1304" not in verdict.remedy
    assert f"gpus: pid 1349 (sglang::scheduler): {memory:,.0f} MiB of GPU 0" in text_of(verdict)
    assert f"log: {log.strip()[:60]}" in text_of(verdict)


@pytest.mark.parametrize(
    "memory, name", [(70900.0, "orphan-holds-gpu"), (4022.0, "cuda-oom-kv"), (None, "cuda-oom-kv")]
)
def test_an_orphans_share_of_a_gpu_of_unknown_size(memory: float | None, name: str) -> None:
    """A tenth of a usual one; of memory that the driver does not tell nothing is said."""
    assert ended({**ALONE, "memory": memory}, log=OOM).name == name


@pytest.mark.parametrize(
    "orphans, gpus",
    [([{"memory": 14000.0}], 1), ([{"gpu": 1, "memory": 120000.0}], 2), ([{"gpu": 0, "memory": None}], 1)],
    ids=["small", "on another GPU", "unknown"],
)
def test_an_orphan_that_is_not_the_reason_is_named(orphans: list[dict[str, Any]], gpus: int) -> None:
    """Out of memory stays the verdict, with the orphan in its evidence and among the alternatives."""
    verdict = ended(KEPT, *({**ALONE, **one} for one in orphans), log=OOM, gpus=gpus)

    assert (verdict.name, verdict.alternatives[-1]) == ("cuda-oom-kv", "orphan-holds-gpu")
    assert "gpus: pid 1349 (sglang::scheduler): " in text_of(verdict) and "pid 1304" not in text_of(verdict)


def test_several_small_orphans_are_a_large_one() -> None:
    """Together they hold more than a tenth; each is ended."""
    small = [{"pid": pid, "orphan": True, "memory": 8000.0} for pid in (1349, 1350)]
    verdict = ended(*small, log=OOM, gpus=1)

    assert verdict.name == "orphan-holds-gpu"
    assert "--orphan 1349 --orphan 1350" in verdict.remedy


def test_the_gpus_are_those_of_the_servers_arguments() -> None:
    """``base-gpu-id`` and tp: an orphan on GPU 3 is in the way of a server on GPUs 2 and 3."""
    orphan = {**ALONE, "gpu": 3, "memory": 120000.0}
    two = ended(orphan, log=OOM, gpus=4, case={"tp": 2, "args": "base_gpu_id=2, gpu_id_step=1"})
    low = ended(orphan, log=OOM, gpus=4, case={"tp": 2})

    copies = ended(orphan, log=OOM, gpus=4, case={"tp": 2, "args": "dp_size=2, enable_dp_attention=False"})
    among = ended(orphan, log=OOM, gpus=4, case={"tp": 2, "args": "dp_size=2, enable_dp_attention=True"})

    assert (two.name, low.name) == (copies.name, among.name) == ("orphan-holds-gpu", "cuda-oom-kv")
    assert two.summary.endswith("of GPU 3")


@pytest.mark.parametrize(
    "visible, name",
    [("2,3", "orphan-holds-gpu"), ("", "cuda-oom-kv"), (None, "cuda-oom-kv"), ("GPU-7d1c,GPU-88aa", "cuda-oom-kv")],
)
def test_the_gpus_are_those_that_cuda_shows(visible: str | None, name: str) -> None:
    """With CUDA_VISIBLE_DEVICES its GPU 1 is the host's GPU 3. Names of GPUs lead nowhere: its arguments count then."""
    orphan = {**ALONE, "gpu": 3, "memory": 120000.0}
    verdict = ended(orphan, log=OOM, gpus=4, visible=visible, case={"tp": 2})

    assert verdict.name == name
    assert (f"the server is shown {visible} (CUDA_VISIBLE_DEVICES)" in text_of(verdict)) is bool(visible)


def test_one_orphan_on_several_gpus_is_ended_once() -> None:
    """With and without a cause in the log."""
    both = [{**ALONE, "gpu": gpu, "memory": 70000.0} for gpu in (0, 1)]

    for log in (OOM, ""):
        verdict = ended(*both, log=log, gpus=2, case={"tp": 2})
        assert verdict.name == "orphan-holds-gpu"
        assert verdict.remedy.count("--orphan 1349") == 1


def test_other_causes_come_before_any_orphan() -> None:
    """Memory has nothing to do with a compiler that is missing."""
    verdict = ended({**ALONE, "memory": 120000.0}, log="RuntimeError: Could not find nvcc\n", gpus=1)

    assert verdict.name != "orphan-holds-gpu" and "orphan-holds-gpu" not in verdict.alternatives
