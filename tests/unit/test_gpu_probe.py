"""What nvidia-smi of several drivers and NCCL's RAS of several versions say, and what is made of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsops.agent import probe_gpus, procs
from hsops.agent.ending import until
from hsops.agent.probe import Probe
from hsops.agent.probe_tools import CouldNot
from hsops.diagnose import judge
from hsops.diagnose.ras import parse
from tests import diagnose_cases

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


@contextlib.contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, text: str) -> Iterator[None]:
    """A port that answers as RAS does: reads a line, says all, closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(probe_gpus, "_RAS_PORT", server.getsockname()[1])

        def serve() -> None:
            link, _ = server.accept()
            with link:
                if link.recv(100) == b"verbose status\n":
                    link.sendall(text.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(20)


def test_ras_is_asked_on_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole answer, to where it is closed."""
    with answering(monkeypatch, MISMATCH * 20):
        assert probe_gpus.ras(20.0) == MISMATCH * 20


def test_nobody_on_the_port_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without NCCL, as on a CPU."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(probe_gpus, "_RAS_PORT", port)

    with pytest.raises(CouldNot) as caught:
        probe_gpus.ras(5.0)

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
