"""What a process is about, by its state, its system call and the frames below Python: working, or waiting for whom."""

from __future__ import annotations

import re

from hsops.diagnose.processes import Process
from hsops.diagnose.stacks import Frame, waits_for_peers

# Frames of C, C++, CUDA and NCCL that only wait; the first row that matches a thread's frames wins.
_NATIVE: tuple[tuple[str, str], ...] = (
    (r"ncclCommInit|bootstrap(Init|Net|Recv|Send|AllGather)", "NCCL's start: it waits for its peers"),
    (r"TCPStore|c10d::.*Store.*(wait|get)|doWait", "the rendezvous store: it waits for a rank"),
    (r"gloo::|ProcessGroupGloo", "a collective of gloo: it waits for a peer"),
    (r"^nccl|ProcessGroupNCCL", "a collective of NCCL: it waits for a peer"),
    (r"cu(da)?(Stream|Event|Device|Ctx)?Synchronize|cudaMemcpy|cuMemcpy", "CUDA: it waits for the GPU"),
    (r"take_gil|PyEval_RestoreThread|PyGILState_Ensure", "Python's lock: another thread holds it"),
    (r"PyThread_acquire_lock|lock_PyThread_acquire|sem_(timed|clock)?wait|pthread_(mutex_lock|cond_)", "a lock"),
    (r"zmq::", "a socket of ZeroMQ"),
    (r"uv__io_poll|epoll_wait|^poll$|^ppoll$|^select$", "events: it has nothing to do"),
)
# x86-64 and, where it differs, AArch64: the calls that a server's processes wait in
_CALLS = {
    "x86_64": {0: "read", 1: "write", 7: "poll", 9: "mmap", 16: "ioctl", 17: "pread64", 20: "writev", 23: "select",
               35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg",
               61: "wait4", 73: "flock", 74: "fsync", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
               257: "openat", 271: "ppoll", 281: "epoll_pwait"},
    "aarch64": {22: "epoll_pwait", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write", 66: "writev",
                67: "pread64", 73: "ppoll", 82: "fsync", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
                202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg",
                222: "mmap", 260: "wait4"},
}  # fmt: skip
_WAITS = {
    "futex": "waiting on a lock",
    "clock_nanosleep": "asleep",
    "nanosleep": "asleep",
    "wait4": "waiting on a child",
}
IN_DRIVER = "spinning in the kernel driver"
_ON_FILES = ("read", "pread64", "write", "writev", "openat", "fsync", "mmap", "flock")


def call(number: str, machine: str) -> str:
    """The name of a system call by its number, as /proc shows it; "" for ``running`` and for one not in the table."""
    return _CALLS.get(machine, {}).get(int(number), "") if number.isdigit() else ""


def native(frames: tuple[Frame, ...]) -> str:
    """What native frames wait for; "" where no row knows them."""
    return next((words for text, words in _NATIVE if any(re.search(text, f.name) for f in frames)), "")


def state_of(process: Process) -> str:
    """In words for people: ``spinning in user space``, ``waiting on a peer`` ...; "" where nothing can be said."""
    letters = {"Z": "zombie", "X": "zombie", "T": "stopped", "t": "stopped by a tracer"}
    if process.state in letters:
        return letters[process.state]
    if process.busy:
        return _busy(process)
    return _waiting(process)


def _busy(process: Process) -> str:
    activity = process.activity
    assert activity
    top = process.trace.top[0] if process.trace and process.trace.top else ("", "", 0)
    if top[0] == "ioctl" and "nvidia" in top[1]:
        return IN_DRIVER
    if process.asks_peers:
        return "asking a peer"
    if process.polls:
        return "polling for work"
    if not process.trace:
        return "on a core all the time"
    if process.spins and activity.main_user < activity.main_cpu / 2:
        return IN_DRIVER if "nvidia" in activity.target else "spinning in the kernel"
    return "spinning in user space" if process.spins else "working"


def _waiting(process: Process) -> str:
    below = native(process.native)
    if below.endswith("a peer") or (process.stack and waits_for_peers(process.stack)):
        return "waiting on a peer"
    activity = process.activity
    if activity is None:
        return ""
    name, target, path = activity.call, activity.target, activity.target.startswith("/")
    on_file = process.state == "D" or (name in _ON_FILES and path)
    for kind, there in (
        ("a pipe", target.startswith("pipe:") or "pipe" in activity.wchan or "fifo" in activity.wchan),
        ("the network", target.startswith("socket:")),
        ("the disk", on_file),
    ):
        if there:
            return f"waiting on {kind}{_in(name)}{f' of {target}' if path else ''}"
    return _WAITS.get(name, f"waiting{_in(name)}" if name else "")


def _in(name: str) -> str:
    return f" ({name})" if name else ""
