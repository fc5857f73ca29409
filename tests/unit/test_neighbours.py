"""What is the host's, and another server's there: none of it is told of this one."""

from __future__ import annotations

from typing import Any

import pytest

from hsops.diagnose import judge
from tests.diagnose_cases import evidence

WAITS = [{"role": "launcher", "pid": 1000}, {"ranks": 2, "state": "D"}, {"role": "detokenizer"}]
GPUS = [{"index": n, "bus": f"00000000:{n + 1:02X}:00.0", "util": 3.0, "power": 90.0} for n in range(4)]
OFF_THE_BUS = "NVRM: Xid (PCI:0000:{:02x}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
KILLED = "Out of memory: Killed process {} (sglang::schedul) total-vm:9kB"


def case(**live: Any) -> dict[str, Any]:
    """A server of two ranks that was ready and does not answer."""
    port = {"open": 1000, "health": "timeout", "model_info": 200}
    run = live.pop("run", None)
    found = {"tp": 2, "upto": "ready", "live": {"silent": 90, "processes": WAITS, "port": port, **live}}
    return {**found, "run": run} if run else found


@pytest.mark.parametrize(
    "visible,bus,mine",
    [("0,1", 2, True), ("0,1", 4, False), ("2,3", 4, True), ("2,3", 1, False), ("", 4, False), (None, 4, True)],
)
def test_a_fault_of_a_gpu_that_another_server_has(visible: str | None, bus: int, mine: bool) -> None:
    """Is none of this one's, where it is known which GPUs are shown to it."""
    found = evidence(case(gpus=GPUS, visible=visible, kernel={"xid": [OFF_THE_BUS.format(bus)]}))

    assert (judge(found).name == "gpu-fell-off-bus") is mine


@pytest.mark.parametrize(
    "line", ["NVRM: Xid 79", "NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.", OFF_THE_BUS.format(0x41)]
)
def test_a_fault_of_a_gpu_that_nobody_knows_may_be_ours(line: str) -> None:
    """One that has fallen off the bus is not listed any more."""
    listed = [{**gpu, "bus": f"00000000:{n + 1:02X}:00.0"} for n, gpu in enumerate(GPUS) if n != 2]

    found = evidence(case(gpus=[*listed, {"index": 5, "bus": "[N/A]"}], visible="0,1", kernel={"xid": [line]}))

    assert found.own_xid == (line,)


def test_an_oom_kill_of_another_servers_rank() -> None:
    """All ranks of this one are there: none of them was killed."""
    there = evidence(case(kernel={"oom": [KILLED.format(4711)]}))
    gone = evidence(case(kernel={"oom": [KILLED.format(4711)]}, processes=[WAITS[0], {"role": "scheduler", "rank": 0}]))

    assert there.own_oom == ()
    assert len(gone.own_oom) == 1


@pytest.mark.parametrize("end,name", [({"signal": "SIGKILL", "oom": False}, "rank-killed"),
                                      ({"signal": "SIGKILL", "oom": True}, "scheduler-killed-oom"),
                                      (None, "scheduler-killed-oom")])  # fmt: skip
def test_kills_of_others_since_boot(end: dict[str, Any] | None, name: str) -> None:
    """The host's counter speaks for a rank only where no supervisor has seen that it did not rise."""
    dead = {"role": "scheduler", "rank": 1, "state": "Z", "ended": "SIGKILL"}
    ranks = {"TP0": None, "TP1": {"code": None, "time": 999_990.0, **end} if end else None}
    run = {"ranks": ranks, "rank_pids": {"TP0": 1001, "TP1": 1003}}
    processes = [WAITS[0], {"role": "scheduler", "rank": 0}, dead]

    verdict = judge(
        evidence(case(run=run, processes=processes, memory={"oom_kills": 3}, could_not={"kernel": "not-permitted"}))
    )

    assert (verdict.name, verdict.rank) == (name, 1)


def test_another_servers_answer_is_not_this_ones_health() -> None:
    """Its run ended by itself, and a stranger has its port and answers."""
    run = {"phase": "exited", "exit": {"code": 1, "signal": "", "oom": False, "time": 999_990.0}}
    stranger = {"open": 4711, "health": 200, "model_info": 200}

    ended = evidence(case(run=run, processes=[], port=stranger))
    alive = evidence(case(port=stranger))
    own = evidence(case(port={**stranger, "open": 1000}))

    assert not ended.healthy and judge(ended).name not in ("healthy", "healthy-loaded")
    assert judge(alive).name == "port-in-use"
    assert judge(own).name == "healthy"
