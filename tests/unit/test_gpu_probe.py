"""What nvidia-smi of several drivers and NCCL's RAS of several versions say, and what is made of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hsops.agent import probe_gpus, procs
from hsops.agent.ending import until
from hsops.agent.probe import Probe
from hsops.agent.probe_tools import CouldNot
from hsops.diagnose import judge
from hsops.diagnose.ras import parse
from tests import diagnose_cases

RECORDED = Path(__file__).parent.parent / "cases" / "gpu"
VICTIM = Path(__file__).parent.parent / "victims" / "ras.py"
LINES = [  # driver, a line as it says it, what is known of the GPU
    (
        "390, a small GPU (2018)",
        "0, [Not Supported], 31, 2002, [Not Supported], [Not Supported]",
        {"index": 0, "memory": 31, "memory_total": 2002},
    ),
    ("440 (2020)", "0, 86, 7979, 8192, 176.98, N/A", {"index": 0, "util": 86, "memory": 7979, "power": 176.98}),
    (
        "470, no power",
        "1, [N/A], 10240, 12288, [N/A], [N/A], [N/A], 8.6, 470.57.02, 00000000:01:00.0, NVIDIA GeForce RTX 3080",
        {"index": 1, "memory": 10240, "compute_cap": 8.6, "driver": "470.57.02", "name": "NVIDIA GeForce RTX 3080"},
    ),
    (
        "570, a GPU whose firmware is gone",
        "3, [Unknown Error], [GPU requires reset], [Unknown Error], [Unknown Error], 600.00, 0, 12.0, 570.124.06, "
        "00000000:C1:00.0, NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        {"index": 3, "power_limit": 600, "compute_cap": 12.0, "bus": "00000000:C1:00.0"},
    ),
    (
        "580, an H200 that waits for a peer",
        "0, 100, 3527, 143771, 119.19, 700.00, 1980, 9.0, 580.95.05, 00000000:00:06.0, NVIDIA H200",
        {"util": 100, "power": 119.19, "power_limit": 700, "clock": 1980, "name": "NVIDIA H200"},
    ),
]


@pytest.mark.parametrize("line,known", [row[1:] for row in LINES], ids=[row[0] for row in LINES])
def test_a_line_of_each_driver(line: str, known: dict[str, object]) -> None:
    """Figures are numbers; what a driver does not know is left out, in whatever words it says so."""
    found = probe_gpus.parse_gpu(line)

    assert {key: found.get(key) for key in known} == known
    assert not [value for value in found.values() if isinstance(value, str) and value.startswith("[")]


def test_who_holds_memory() -> None:
    """The GPU by its bus id; a container's driver tells of nobody."""
    gpus = [{"index": 0.0, "bus": "00000000:00:06.0"}, {"index": 1.0, "bus": "00000000:00:07.0"}]

    app = probe_gpus.parse_app("7837, 3024, 00000000:00:07.0, sglang::scheduler_TP1", gpus)
    assert app == {"pid": 7837, "memory": 3024.0, "gpu": 1, "name": "sglang::scheduler_TP1"}
    assert probe_gpus.parse_app("7730, [N/A], 00000000:09:00.0, [Not Found]", gpus) == {
        "pid": 7730, "memory": None, "gpu": None, "name": "[Not Found]",
    }  # fmt: skip
    assert probe_gpus.parse_app("No running processes found", gpus) is None


def tool(folder: Path, text: str) -> None:
    """An nvidia-smi of our own."""
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "nvidia-smi").chmod(0o755)


def test_an_old_driver_is_asked_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a query over one field that it does not know."""
    tool(
        tmp_path,
        'case "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to query.\'; exit 2;; '
        "*query-gpu*) echo '0, 5, 31, 2002, 9.1, 70.00';; *) echo 'No running processes found';; esac",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    found = probe_gpus.gpus(20.0)

    assert found["gpu_apps"] == [] and [gpu["power_limit"] for gpu in found["gpus"]] == [70.0]


def test_a_driver_that_does_not_answer_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are the reason; so is silence."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool(tmp_path, "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    with pytest.raises(CouldNot, match="version mismatch"):
        probe_gpus.gpus(20.0)

    tool(tmp_path, "exec sleep 60")
    with pytest.raises(CouldNot) as caught:
        probe_gpus.gpus(0.2)
    assert caught.value.why == "timed-out"


def test_a_rank_below_its_launcher_is_no_orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks that no run here knows: Python is above one, as a server by hand; the other's launcher has ended."""
    rank = ["sglang::scheduler_TP0", "60"]
    below = subprocess.Popen(rank, executable="/bin/sleep")
    code = f"import subprocess; print(subprocess.Popen({rank}, executable='/bin/sleep', stdout=2).pid)"
    words = [sys.executable, "-c", code]
    said = subprocess.run(words, start_new_session=True, stdout=subprocess.PIPE, text=True, check=True).stdout
    alone = int(said)
    try:
        until(lambda: all("sglang::" in procs.title(pid) for pid in (below.pid, alone)), 60.0)  # empty after exec
        rows = "".join(f"echo '{pid}, 4020, 00000000:00:06.0, sglang::scheduler'; " for pid in (below.pid, alone))
        tool(tmp_path, f'case "$1" in *query-gpu*) echo "0, 5, 31, 2002, 9.1, 70.00";; *) {rows};; esac')
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        found = Probe({"state_dir": str(tmp_path), "budget_s": 60.0}).gpus()
    finally:
        below.kill()
        below.wait()
        os.kill(alone, signal.SIGKILL)

    assert [(app["pid"], app["orphan"]) for app in found["gpu_apps"]] == [(below.pid, False), (alone, True)]


MISMATCH = """NCCL version 2.24.3 compiled with CUDA 12.5
CUDA runtime version 12050, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649
  Rank 5 -- GPU 5 managed by process 3487984 on node 172.16.64.213
"""
INCOMPLETE = """NCCL version 2.27.7 compiled with CUDA 12.9
Job summary
===========
Errors
======
#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 3
#dead process: lost connection to process 4711 on node x
"""
BROKEN = """{"nccl_version": "2.28.9", "communicators": [{"hash": "0x1", "ranks": [
 {"rank": 0, "pid": 1, "collective_counts": {"AllReduce": 9}},
 {"rank": 1, "pid": 2, "collective_counts": {"AllReduce": 9}},
 {"rank": 2, "pid": 3, "collective_counts": {"AllReduce": 8}}],
 "missing_ranks": [{"rank": 3, "note": ""} {"rank": 4, "note": ""}]}]}"""


def test_a_rank_behind_the_others_is_named() -> None:
    """By its number and the operation it has reached."""
    found = parse(MISMATCH)

    assert found and (found.version, dict(found.behind), found.ahead) == ("2.24.3", {5: 6649}, 6650)
    assert found.warned == ("MISMATCH",)


def test_a_rank_without_data_is_named() -> None:
    """And a process that is gone."""
    found = parse(INCOMPLETE)

    assert found and (found.missing, found.dead, found.version) == ((3,), (4711,), "2.27.7")


HEAD = "NCCL version 2.28.9 compiled with CUDA 13.0\nJob summary\n===========\nWarnings\n========\n\n"
ONE_BEHIND = """#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 5 managed by process 1005 on node 172.16.64.213

"""
OF_TWO = """#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 3 -- GPU 0 managed by process 1000 on node 172.16.64.213
  Rank 1 has launched up to operation 4 -- GPU 1 managed by process 1001 on node 172.16.64.213

"""
SOME_BEHIND = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different Broadcast operation counts
  6 ranks have launched up to operation 12
  2 ranks have not launched any operations
  Rank 2 -- GPU 2 managed by process 1002 on node 172.16.64.210
  Rank 3 -- [process information not found]

"""
SILENT = """Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 1003 on node 172.16.64.213 managing GPU 3

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 1004 on node 172.16.64.213 managing GPU 4

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 3 -- GPU 3 managed by process 1003 on node 172.16.64.213
  Rank 4 -- GPU 4 managed by process 1004 on node 172.16.64.213

"""


@pytest.mark.parametrize(
    "text,behind,ahead",
    [
        (ONE_BEHIND, {5: 6649}, 6650),
        (OF_TWO, {0: 3}, 4),
        (SOME_BEHIND, {2: 0, 3: 0}, 12),
        (ONE_BEHIND + SOME_BEHIND, {5: 6649, 2: 0, 3: 0}, 6650),
        (ONE_BEHIND + SILENT, {5: 6649}, 6650),
    ],
    ids=["one", "one of two", "some", "of two communicators", "and others that are silent"],
)
def test_the_words_for_one_rank_and_for_several(text: str, behind: dict[int, int], ahead: int) -> None:
    """NCCL 2.27 and 2.30 put what a single rank has launched into its own line."""
    found = parse(HEAD + text)

    assert found and (dict(found.behind), found.ahead, found.version) == (behind, ahead, "2.28.9")


def test_what_nccl_2_28_said_on_a_gpu() -> None:
    """Two ranks on an H200, well and after one had begun a sum that the other had not (tests/gpu/one_card.py)."""
    well, mismatch = (parse((RECORDED / f"ras-{state}.txt").read_text()) for state in ("well", "mismatch"))

    assert well and (dict(well.behind), well.missing, well.dead, well.warned) == ({}, (), (), ())
    assert mismatch and (dict(mismatch.behind), mismatch.ahead, mismatch.version) == ({1: 3}, 4, "2.28.9")


def test_ranks_and_processes_that_do_not_answer() -> None:
    """Those without data and the dead ones."""
    found = parse(HEAD + SILENT)

    assert found and (found.missing, found.dead, dict(found.behind)) == ((3, 4), (1003, 1004), {})


def test_a_rank_is_called_as_the_server_calls_its_process() -> None:
    """Its number within a communicator of some ranks is another one."""
    part = ONE_BEHIND.replace("7 ranks", "3 ranks").replace("Rank 5", "Rank 1")

    found = parse(HEAD + part, {1004: 4, 1005: 5})
    known = parse(BROKEN, {3: 7})

    assert found and dict(found.behind) == {5: 6649}
    assert known and dict(known.behind) == {7: 8}


def test_json_without_commas_is_read() -> None:
    """As NCCL 2.28.9 writes it."""
    found = parse(BROKEN)

    assert found and (dict(found.behind), found.ahead, found.missing) == ({2: 8}, 9, (3, 4))


@pytest.mark.parametrize("text", ["", "HTTP/1.1 400 Bad Request", "{", '{"a": ', MISMATCH[:40], BROKEN[:90]])
def test_anything_else_is_no_error(text: str) -> None:
    """Cut short, or another service: less is known, and nothing fails."""
    found = parse(text)

    assert found is None or not found.behind


def test_the_rank_that_nccl_names_is_the_suspect() -> None:
    """A server that was ready, without stacks: the counts decide, and what they cannot see is said."""
    case = {
        "tp": 8,
        "upto": "ready",
        "live": {
            "silent": 300,
            "processes": [{"role": "launcher", "pid": 1000}, {"role": "detokenizer"}, {"ranks": 8, "state": "R"}],
            "port": {"open": 1000, "health": "timeout", "model_info": 200},
            "ras": MISMATCH,
        },
    }

    verdict = judge(diagnose_cases.evidence(case))

    assert (verdict.name, verdict.rank) == ("collective-deadlock", 5)
    assert [f.text for f in verdict.evidence if f.source == "nccl" and "CUDA graphs" in f.text]


class Rank(NamedTuple):
    """A process that listens as NCCL's RAS does."""

    process: subprocess.Popen[str]
    port: int

    @property
    def pid(self) -> int:
        return self.process.pid


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Callable[[str, int], Rank]]:
    """Starts one that gives this answer, at a port or a free one."""
    started: list[subprocess.Popen[str]] = []

    def start(answer: str, port: int = 0) -> Rank:
        text = tmp_path / f"answer-{len(started)}"
        text.write_text(answer)
        words = [sys.executable, str(VICTIM), str(port), str(text)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout
        return Rank(started[-1], int(started[-1].stdout.readline()))

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_ras_is_asked_where_it_listens(listen: Callable[..., Rank]) -> None:
    """The whole answer, to where it is closed."""
    rank = listen(MISMATCH * 20)

    assert probe_gpus.ras(f"localhost:{rank.port}", [rank.pid], 20.0) == MISMATCH * 20


def test_of_two_servers_on_one_port_only_the_own_one_is_read(listen: Callable[..., Rank]) -> None:
    """As all ranks of a user share the port, the kernel picks who is connected: each time an own rank is heard."""
    other = listen("another server's")
    own = [listen("ours", other.port) for _ in range(2)]

    said = {probe_gpus.ras(f"localhost:{other.port}", [rank.pid for rank in own], 20.0) for _ in range(20)}

    assert said == {"ours"}


def test_a_port_of_another_server_is_not_read(listen: Callable[..., Rank]) -> None:
    """Whose it is is told."""
    other = listen(MISMATCH)

    with pytest.raises(
        CouldNot, match=f"port {other.port} is pid {other.pid}'s, which is not of this server"
    ) as caught:
        probe_gpus.ras(f"127.0.0.1:{other.port}", [os.getpid()], 20.0)

    assert caught.value.why == "not-found"


def test_a_stopped_rank_is_passed_over(listen: Callable[..., Rank]) -> None:
    """The kernel connects to it all the same; another rank answers for all."""
    stopped = listen("never said")
    well = listen("heard", stopped.port)
    os.kill(stopped.pid, signal.SIGSTOP)

    said = [probe_gpus.ras(f"localhost:{well.port}", [stopped.pid, well.pid], 20.0) for _ in range(4)]

    assert said == ["heard"] * 4


def test_ranks_that_are_all_stopped_take_no_longer_than_allowed(listen: Callable[..., Rank]) -> None:
    """It is told that they do not answer."""
    rank = listen("never said")
    os.kill(rank.pid, signal.SIGSTOP)

    with pytest.raises(CouldNot, match="no rank of this server answered") as caught:
        probe_gpus.ras(f"localhost:{rank.port}", [rank.pid], 0.5)

    assert caught.value.why == "timed-out"


def test_nobody_on_the_port_is_no_failure() -> None:
    """A server without NCCL, as on a CPU."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    with pytest.raises(CouldNot, match=f"no NCCL answers on port {port}") as caught:
        probe_gpus.ras(f"localhost:{port}", [os.getpid()], 5.0)

    assert caught.value.why == "not-found"


XIDS = [  # the kernel's line as drivers write it, and the class
    (
        "NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "gpu-fell-off-bus",
    ),
    ("NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.", "gpu-fell-off-bus"),
    ("NVRM: Xid (PCI:0000:01:00): 119, pid=2153, name=python3, Timeout waiting for RPC from GSP!", "xid-gsp-timeout"),
    ("NVRM: Xid (PCI:0000:01:00): 120, pid=2153, GSP task exception", "xid-gsp-timeout"),
    ("NVRM: Xid (PCI:0000:01:00): 8, pid=48694, name=python3, channel 0x00000008", "xid-gsp-timeout"),
    ("NVRM: Xid (PCI:0000:41:00): 31, pid=1101, name=python3, Ch 00000008, MMU Fault", "xid-kernel-fault"),
    ("NVRM: Xid (PCI:0000:41:00): 94, pid=1101, name=sglang::schedul, Contained: SM (0x1)", "xid-kernel-fault"),
]


@pytest.mark.parametrize("line,name", XIDS)
def test_an_xid_of_the_kernels_log_is_a_cause(line: str, name: str) -> None:
    """While the server does not answer; one that answers is not judged by an old line."""
    live = {
        "silent": 90,
        "processes": [{"role": "launcher", "pid": 1000}, {"role": "scheduler", "rank": 0, "state": "D"}],
        "kernel": {"xid": [line]},
        "port": {"open": 1000, "health": "timeout", "model_info": 200},
    }
    case = {"tp": 1, "upto": "ready", "live": live}

    sick = judge(diagnose_cases.evidence(case))
    well = judge(diagnose_cases.evidence({**case, "live": {**live, "port": {"open": 1000, "health": 200}}}))

    assert (sick.name, well.name) == (name, "healthy")
