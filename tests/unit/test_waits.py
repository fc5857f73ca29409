"""What a process is about, in words; stacks of all ranks as one tree; what cannot be seen and what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hsops.diagnose import cite, cite_processes, stack_tree, stacks, waits
from hsops.diagnose.evidence import Blind, Evidence
from hsops.diagnose.processes import Activity, Process, Trace
from hsops.diagnose.stacks import Frame, Stack

QUIET = Activity(0, 0, 0, {"0": 20}, "0", 0, 0, 0, 0, 0)
BUSY = replace(QUIET, cpu=100, main_cpu=100, main_user=95, looks={"running": 20})


def process(activity: Activity | None = None, *, state: str = "S", trace: Trace | None = None) -> Process:
    """A rank."""
    return Process(9, "x", (), "scheduler", 0, state, 9.0, {}, activity=activity, trace=trace)


def traced(calls: int, top: tuple[str, str] = ("write", "eventfd")) -> Trace:
    """System calls of one second."""
    return Trace(calls, 1.0, ((*top, calls),), 0, detached=True)


@pytest.mark.parametrize(
    "seen,words",
    [
        (process(state="Z"), "zombie"),
        (process(QUIET, state="T"), "stopped"),
        (process(QUIET, state="t"), "stopped by a tracer"),
        (process(BUSY, state="R", trace=traced(4)), "spinning in user space"),
        (process(replace(BUSY, main_user=5), state="R", trace=traced(4)), "spinning in the kernel"),
        (process(BUSY, state="R", trace=traced(900, ("ioctl", "/dev/nvidia0"))), "spinning in the kernel driver"),
        (process(BUSY, state="R", trace=traced(20_000, ("poll", ""))), "polling for work"),
        (process(BUSY, state="R"), "on a core all the time"),
        (process(replace(QUIET, call="read", target="pipe:[7]")), "waiting on a pipe (read)"),
        (process(replace(QUIET, call="openat", wchan="wait_for_partner_fifo")), "waiting on a pipe (openat)"),
        (process(replace(QUIET, call="recvfrom", target="socket:[7]")), "waiting on the network (recvfrom)"),
        (process(replace(QUIET, call="read", target="/m/w.bin"), state="D"), "waiting on the disk (read) of /m/w.bin"),
        (process(replace(QUIET, call="futex")), "waiting on a lock"),
        (process(replace(QUIET, call="clock_nanosleep")), "asleep"),
        (process(), ""),
    ],
)
def test_what_a_process_is_about(seen: Process, words: str) -> None:
    """By its state, its call and what that is open on."""
    assert waits.state_of(seen) == words


@pytest.mark.parametrize(
    "names,words",
    [
        (("epoll_wait", "gloo::transport::tcp::UnboundBuffer::waitRecv", "all_reduce"), "gloo"),
        (("sched_yield", "ncclGroupEnd", "c10d::ProcessGroupNCCL::allreduce"), "NCCL: it waits for a peer"),
        (("recv", "bootstrapNetRecv", "ncclCommInitRankConfig"), "NCCL's start"),
        (("cuEventSynchronize", "cudaEventSynchronize", "x"), "the GPU"),
        (("futex_wait", "take_gil", "PyEval_RestoreThread"), "another thread holds it"),
        (("c10d::TCPStore::wait", "x"), "the rendezvous store"),
        (("nothing", "known"), ""),
    ],
)
def test_what_native_frames_wait_for(names: tuple[str, ...], words: str) -> None:
    """The words of the first row that matches one of them."""
    told = waits.native(tuple(Frame(name, "lib.so", 0) for name in names))

    assert words in told and bool(words) == bool(told)


@pytest.mark.parametrize(
    "number,machine,name",
    [("202", "x86_64", "futex"), ("98", "aarch64", "futex"), ("running", "x86_64", ""), ("-1", "x86_64", ""),
     ("202", "riscv64", ""), ("?", "x86_64", "")],
)  # fmt: skip
def test_system_calls_by_number(number: str, machine: str, name: str) -> None:
    """Where a machine is unknown nothing is claimed."""
    assert waits.call(number, machine) == name


def stack(*names: str) -> Stack:
    """Functions from the outermost inwards."""
    return Stack("MainThread", True, True, tuple(Frame(n, "sglang/srt/m.py", 1) for n in reversed(names)))


def test_ranks_and_times_as_one_tree() -> None:
    """Seven ranks wait twice in one place, the eighth moved from one to another: a chain is one line."""
    waiting = stack("loop", "run_batch", "all_reduce")
    seen = {rank: [waiting, waiting] for rank in range(7)} | {7: [stack("loop", "save"), stack("loop", "other")]}

    lines = list(stack_tree.lines(stack_tree.tree(seen)))

    assert lines == [
        "TP0-TP7: loop  m.py:1",
        "  TP0-TP6: all_reduce  m.py:1",
        "  TP7 (first look): save  m.py:1",
        "  TP7 (second look): other  m.py:1",
    ]


@pytest.mark.parametrize(
    "one,other,waiting,differ",
    [
        (("run_batch", "forward", "all_reduce"), ("run_batch", "forward", "all_reduce"), 2, False),
        (("run_batch", "forward", "all_reduce"), ("run_batch", "save", "barrier"), 2, True),
        (("run_batch", "forward", "all_reduce"), ("run_batch", "forward", "mlp"), 0, False),
    ],
)
def test_ranks_in_different_collectives(
    one: tuple[str, ...], other: tuple[str, ...], waiting: int, differ: bool
) -> None:
    """Told by the function that called it; a rank that computes waits for nobody."""
    found = stacks.collectives({0: in_torch(*one), 1: in_torch(*other)})

    assert (len(found), stacks.apart(found)) == (waiting, differ)


def in_torch(*names: str) -> Stack:
    """The same, the innermost function being torch's."""
    *own, last = names
    inner = Frame(last, "torch/distributed/distributed_c10d.py" if last != "mlp" else "sglang/srt/m.py", 1)
    return Stack("MainThread", True, True, (inner, *stack(*own).frames))


def test_no_stacks_no_tree() -> None:
    """Ranks without stacks are not in it."""
    assert list(stack_tree.lines(stack_tree.tree({}))) == []
    assert list(stack_tree.lines(stack_tree.tree({0: [], 3: [stack("loop")]}))) == ["TP3 (first look): loop  m.py:1"]


def test_what_cannot_be_seen_is_told_with_its_price() -> None:
    """Each missing tool with what it costs; nothing of GPUs where the server runs on the CPU."""
    gone = (Blind("strace", "not-found", "strace is not installed"), Blind("gpus", "not-found", "no nvidia-smi"))
    cpu = Process(1, "x", ("python", "--device", "cpu"), "launcher", None, "S", 9.0, {})

    told = [finding.text for finding in cite.blind(Evidence(True, could_not=gone))]
    on_cpu = [finding.text for finding in cite.blind(Evidence(True, could_not=gone, processes=(cpu,)))]

    assert "strace is not installed (not-found): a rank that spins cannot be told" in told[0]
    assert "no nvidia-smi (not-found): whether the GPUs work" in told[1]
    assert on_cpu == told[:1]


def test_other_threads_at_work_are_told() -> None:
    """Not those that hardly use a core."""
    activity = replace(QUIET, call="futex", others=(("nccl-progress", 98.0, "R"), ("py-writer", 3.0, "S")))

    told = [finding.text for finding in cite_processes.threads(Evidence(True, processes=(process(activity),)))]

    assert told == ["TP0: waiting on a lock", "TP0, other threads: nccl-progress 98 %"]


def test_the_last_line_is_what_looking_took() -> None:
    """Time, CPU and the looks that took some; a thread that is held afterwards is shouted."""
    seen = Evidence(True, took_s=3.14, cpu_s=0.4, spent={"sample": 1.0, "native": 0.0})

    (clean,), (held,) = cite.overhead(seen), cite.overhead(replace(seen, held=("7: t, 9",)))

    assert clean.text == "3.1 s, 0.4 s of CPU (sample 1.0 s); no thread is left traced or stopped"
    assert "LEFT TRACED OR STOPPED: threads 7: t, 9" in held.text
    assert list(cite.everything(seen))[-1] == clean
