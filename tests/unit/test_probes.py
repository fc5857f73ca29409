"""What probes make of the output of tools and of /proc, without any."""

from __future__ import annotations

import os
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import probe_census, probe_faults, probe_host, probe_http, probe_stacks, probe_strace, probe_tools
from hsops.agent.probe import Probe
from hsops.agent.procs import Proc

STRACE = r"""strace: Process 4121 attached
write(14<anon_inode:[eventfd]>, "\1\0\0\0\0\0\0\0", 8) = 8
read(14<anon_inode:[eventfd]>, "\1\0\0\0\0\0\0\0", 8) = 8
write(14<anon_inode:[eventfd]>, "\1\0\0\0\0\0\0\0", 8) = 8
write(2</var/log/server.log>, "[2026-11"..., 120) = 120
poll([{fd=9, events=POLLIN}], 1, 0) = 0 (Timeout)
futex(0x7f, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>
sendto(30<socket:[81234]>, "\1", 1, MSG_NOSIGNAL, NULL, 0) = 1
restart_syscall(<... resuming interrupted read ...>strace: Process 4121 detached
 <detached ...>
"""


def test_strace_is_counted_by_call_and_kind_of_file() -> None:
    """Each line counts once, under its call and what its first argument is."""
    counts = probe_strace.parse(STRACE)

    assert counts == Counter(
        {
            ("write", "eventfd"): 2,
            ("read", "eventfd"): 1,
            ("write", "/var/log/server.log"): 1,
            ("poll", ""): 1,
            ("futex", ""): 1,
            ("sendto", "socket"): 1,
            ("restart_syscall", ""): 1,
        }
    )


def test_small_writes_to_an_eventfd_are_told_apart() -> None:
    """Only writes of up to 8 bytes to an eventfd count, not those to a log."""
    assert probe_strace.eventfd_writes(STRACE) == 2


@pytest.mark.parametrize(
    "target,kind",
    [
        ("anon_inode:[eventfd]", "eventfd"),
        ("anon_inode:[eventpoll]", "eventpoll"),
        ("socket:[123]", "socket"),
        ("pipe:[9]", "pipe"),
        ("TCP:[127.0.0.1:80->127.0.0.1:9]", "TCP"),
        ("/dev/shm/x", "/dev/shm/x"),
        ("", ""),
    ],
)
def test_kind_of_file(target: str, kind: str) -> None:
    """strace -y names files; numbers in them say nothing."""
    assert probe_strace.kind_of(target) == kind


def test_the_main_thread_comes_first() -> None:
    """py-spy lists threads in any order; the main one and up to three active ones are kept."""
    raw = [
        {"os_thread_id": 8, "thread_name": "x", "active": False, "owns_gil": False, "frames": []},
        {"os_thread_id": 9, "thread_name": "forward", "active": True, "owns_gil": False, "frames": []},
        {
            "os_thread_id": 7,
            "thread_name": "MainThread",
            "active": False,
            "owns_gil": False,
            "frames": [{"name": "f", "filename": "/opt/venv/lib/python3.11/site-packages/sglang/srt/a.py", "line": 3}],
        },
    ]

    found = probe_stacks.threads(raw, pid=7)

    assert [thread["name"] for thread in found] == ["MainThread", "forward"]
    assert found[0]["frames"] == [["f", "sglang/srt/a.py", 3]]


@pytest.mark.parametrize(
    "path,short",
    [
        ("/v/lib/python3.11/site-packages/torch/a/b.py", "torch/a/b.py"),
        ("/sgl-workspace/sglang/python/sglang/srt/x.py", "sglang/srt/x.py"),
        ("/root/.pyenv/versions/3.11.7/lib/python3.11/threading.py", "python3.11/threading.py"),
        ("<string>", "<string>"),
    ],
)
def test_files_are_named_below_their_import_root(path: str, short: str) -> None:
    """Also where SGLang is an editable checkout."""
    assert probe_stacks.shorten(path) == short


def test_a_refusal_of_the_kernel_is_recognised() -> None:
    """Tools have no code for it, only words."""
    assert probe_tools.denied(["Permission Denied: Try running again with elevated permissions"])
    assert probe_tools.denied(["strace: attach: ptrace(PTRACE_SEIZE, 10676): Operation not permitted"])
    assert not probe_tools.denied(["Error: Failed to get stack traces"])


def process(comm: str, *, pid: int = 9, state: str = "S", status: int = 0) -> Proc:
    return Proc(pid, 1, 0, state, comm, 1, 0, 0, 0, 0, status)


@pytest.mark.parametrize(
    "comm,argv,role,rank",
    [
        ("sglang::schedul", ["sglang::scheduler_TP3"], "scheduler", 3),
        ("sglang::schedul", ["sglang::scheduler_DP1_TP0"], "scheduler", 0),
        ("sglang::schedul", ["sglang::scheduler"], "scheduler", 0),
        ("sglang::detoken", ["sglang::detokenizer"], "detokenizer", None),
        ("sglang::tokeniz", ["sglang::tokenizer_worker:4121"], "tokenizer", None),
        ("sglang::data_pa", ["sglang::data_parallel_controller"], "data_parallel_controller", None),
        ("sglang::schedul", [], "scheduler", None),
        ("python", ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(3)"], "child", None),
        (
            "python",
            ["python", "-B", "-c", "from multiprocessing.resource_tracker import main"],
            "resource-tracker",
            None,
        ),
        ("cicc", ["/usr/local/cuda/nvvm/bin/cicc", "--c++17"], "compiler", None),
        ("python3", ["python3", "/v/torch/_inductor/compile_worker/__main__.py"], "compile-worker", None),
        ("python", ["python", "-I", "/s/agent/0a.pyz", "run-exec"], "supervisor", None),
        ("bash", ["bash"], "other", None),
    ],
)
def test_what_a_process_is(comm: str, argv: list[str], role: str, rank: int | None) -> None:
    """By SGLang's title; a dead one by its name; a child without a title by how it was started."""
    assert probe_census.identify(process(comm), argv, root=1) == (role, rank)


def strace_that(tmp_path: Path, script: str) -> str:
    """A stand-in for strace, as a shell script; ``$6`` is the pid."""
    tool = tmp_path / "strace"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return str(tool)


def test_the_time_of_a_trace_counts_from_when_it_is_attached(tmp_path: Path) -> None:
    """Where every core is taken, strace needs longer to attach than it is to trace."""
    line = "poll([{fd=9, events=POLLIN}], 1, 0) = 0 (Timeout)"
    said = f"echo strace: Process attached >&2; while :; do echo '{line}' >&2; sleep 0.01; done"
    tool = strace_that(tmp_path, f"sleep 0.5; {said}")

    (found,) = probe_strace.trace(tool, [os.getpid()], 0.2, 20.0).values()

    assert found["calls"] > 0 and found["seconds"] >= 0.2, found


def test_a_strace_that_never_attaches_had_no_time(tmp_path: Path) -> None:
    """The client then looks once more, with more patience; one that says why it cannot is another matter."""
    waits, refused = tmp_path / "waits", tmp_path / "refused"
    for folder in (waits, refused):
        folder.mkdir()

    (late,) = probe_strace.trace(strace_that(waits, "exec sleep 60"), [os.getpid()], 0.2, 0.3).values()
    said = "echo strace: attach: Operation not permitted >&2; exit 1"
    (no,) = probe_strace.trace(strace_that(refused, said), [os.getpid()], 0.2, 20.0).values()

    assert (late["why"], late["message"]) == ("timed-out", "strace was not attached within 0.3 s")
    assert no["why"] == "not-permitted"


def looks_of(given: list[dict[int, Any]], *, budget_s: float) -> dict[int, list[Any]]:
    """What two ranks have of their stacks when py-spy gives this, look after look."""
    probe = Probe({"budget_s": budget_s})
    ranks: list[dict[str, Any]] = [{"pid": pid} for pid in (1, 2)]
    to_come = iter(given)
    assert probe._dump(lambda _pids, _longest: next(to_come), ranks)
    return {rank["pid"]: rank["stacks"] for rank in ranks}


def test_a_rank_whose_stack_moved_under_a_look_is_looked_at_once_more() -> None:
    """It has its two looks then, and nothing is said to be missing; where there is no time for it, it is."""
    here, moved = {"threads": [1]}, {"why": "failed", "message": "Failed to get stack traces"}
    given = [{1: here, 2: moved}, {1: here, 2: here}, {2: here}]

    found = looks_of(given, budget_s=20.0)
    hurried = looks_of(given, budget_s=1.8)
    twice = looks_of([{1: here, 2: moved}, {1: here, 2: moved}, {2: here}], budget_s=20.0)

    assert found == {1: [here] * 2, 2: [here] * 2}
    assert hurried == {1: [here] * 2, 2: [moved, here]}
    assert twice[2] == [moved, here]


def test_of_several_reasons_the_one_that_time_would_take_away_is_told() -> None:
    """A client then asks once more, with more of it."""
    probe = Probe({})

    probe._report("stacks", [{"threads": []}, {"why": "failed", "message": "a"}, {"why": "timed-out", "message": "b"}])
    probe._report("strace", [{"calls": 1}])

    assert probe.could_not == [{"probe": "stacks", "why": "timed-out", "message": "b"}]


def test_a_dead_process_tells_how_it_ended() -> None:
    """The status of a zombie is in /proc until its parent asks for it."""
    killed = probe_census.describe(process("sglang::schedul", state="Z", status=9), boot=0.0, root=1)
    failed = probe_census.describe(process("sglang::schedul", state="Z", status=256), boot=0.0, root=1)

    assert (killed["ended"], failed["ended"]) == ("SIGKILL", "exit 1")


@pytest.mark.parametrize(
    "text,family,address",
    [
        ("0100007F", socket.AF_INET, "127.0.0.1"),
        ("00000000", socket.AF_INET, "0.0.0.0"),
        ("0500000A", socket.AF_INET, "10.0.0.5"),
        ("00000000000000000000000001000000", socket.AF_INET6, "::1"),
        ("00000000000000000000000000000000", socket.AF_INET6, "::"),
    ],
)
def test_addresses_of_the_kernels_tables(text: str, family: int, address: str) -> None:
    """/proc/net/tcp prints words in the machine's byte order."""
    assert probe_http.decode(text, family) == address


def test_what_a_folder_lies_on(tmp_path: Path) -> None:
    """The innermost mount, also for a folder that is not there yet, or named through a link."""
    (tmp_path / "link").symlink_to("/proc")

    found = [probe_host.mount(path)["type"] for path in (str(tmp_path / "link/1/x"), "/proc", "/")]

    assert found[:2] == ["proc", "proc"] and found[2] not in ("", "proc")


def test_stacks_as_faulthandler_writes_them() -> None:
    """The thread that got the signal is the main one and comes first, whatever stands before it; frames keep order."""
    text = (
        "Thread 0x00007f0a (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 327 in wait\n'
        "\n"
        "Current thread 0x00007f0b (most recent call first):\n"
        '  File "/v/lib/python3.11/site-packages/sglang/srt/x.py", line 9 in spin\n'
        '  File "/v/lib/python3.11/site-packages/sglang/srt/x.py", line 3 in <module>\n'
        "  ...\n"
    )

    main, other = probe_faults.parse(text)

    assert (main["main"], main["frames"]) == (
        True,
        [["spin", "sglang/srt/x.py", 9], ["<module>", "sglang/srt/x.py", 3]],
    )
    assert (other["main"], other["frames"]) == (False, [["wait", "python3.11/threading.py", 327]])


@pytest.mark.parametrize("text", ["", "nothing of the kind", '  File "x.py", line 1 in f\n'])
def test_what_is_no_stack_gives_none(text: str) -> None:
    """A file that somebody else wrote into."""
    assert probe_faults.parse(text) == []
