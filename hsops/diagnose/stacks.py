"""Python stacks of ranks: what a rank is doing, and which rank is not where the others are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: qualified name, file below its import root, line."""

    name: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.name}  {self.file.rsplit('/', 1)[-1]}:{self.line}"

    @property
    def function(self) -> str:
        """The last part of the name."""
        return self.name.rsplit(".", 1)[-1]


@dataclass(frozen=True, slots=True)
class Stack:
    """A thread at one moment, frames from the innermost outwards."""

    thread: str
    main: bool
    active: bool
    frames: tuple[Frame, ...]


# What a rank is doing, by a function that stands anywhere in its stack; the first row that matches wins.
# Names are those of SGLang 0.5.4-0.5.23 and torch; a rank of TP > 1 waits for requests inside a broadcast.
_DOING: tuple[tuple[str, frozenset[str]], ...] = (
    ("jit", frozenset({"compile", "_compile", "build_and_load", "do_bench", "autotune", "_compile_fx_inner"})),
    ("graph-capture", frozenset({"init_device_graphs", "init_cuda_graphs", "capture_one_batch_size", "capture"})),
    ("forward", frozenset({"run_batch", "forward_batch_generation", "forward_thread_func", "forward_extend"})),
    ("result", frozenset({"process_batch_result", "resolve_batch_result", "process_batch_result_decode"})),
    ("idle", frozenset({"recv_requests", "process_input_requests", "on_idle", "self_check_during_idle"})),
    ("send", frozenset({"send_multipart", "send_pyobj", "stream_output"})),
    ("loop", frozenset({"event_loop_normal", "event_loop_overlap", "event_loop_pp", "event_loop_normal_dp"})),
    ("rendezvous", frozenset({"init_torch_distributed", "init_distributed_environment", "_create_c10d_store"})),
    ("weights", frozenset({"load_model", "load_weights", "load_weights_and_postprocess"})),
    ("memory-pool", frozenset({"init_memory_pool", "alloc_memory_pool"})),
    ("import", frozenset({"_find_and_load", "exec_module", "_call_with_frames_removed"})),
    ("init", frozenset({"run_scheduler_process", "__init__"})),
)
_COLLECTIVES = frozenset(
    {"all_reduce", "all_gather", "broadcast", "barrier", "reduce_scatter", "all_to_all", "all_gather_into_tensor"}
    | {"tensor_model_parallel_all_reduce", "broadcast_pyobj", "monitored_barrier", "_all_gather_base"}
    | {"ncclAllReduce", "ncclAllGather", "ncclBroadcast", "ncclCommInitRank"}
)
_NOT_OURS = ("torch/", "multiprocessing/", "python3", "<", "importlib/", "asyncio/", "concurrent/", "zmq/")


def doing(stack: Stack) -> str:
    """What a thread is about; ``?`` when no row knows it."""
    names = {frame.function for frame in stack.frames}
    return next((what for what, marks in _DOING if names & marks), "?")


def own_frames(stack: Stack) -> tuple[Frame, ...]:
    """The frames of SGLang and of what was patched into it, innermost first; torch and Python are left out."""
    return tuple(f for f in stack.frames if not f.file.startswith(_NOT_OURS))


def waits_for_peers(stack: Stack) -> bool:
    """The innermost frames are a collective: this rank waits for another one."""
    return any(
        f.function in _COLLECTIVES or f.file.startswith("torch/distributed/") or _all_to_all(f)
        for f in stack.frames[:4]
    )


def _all_to_all(frame: Frame) -> bool:
    """DeepEP's dispatch and combine: every rank waits for every other."""
    return "deep_ep/" in frame.file and frame.function in ("dispatch", "combine", "low_latency_dispatch")


def collectives(stacks: Mapping[int, Stack]) -> Mapping[int, Frame]:
    """Where each rank waits for its peers, by its own innermost frame; empty unless all of them do so."""
    found = {
        rank: own_frames(stack)[0] for rank, stack in stacks.items() if waits_for_peers(stack) and own_frames(stack)
    }
    return found if len(found) == len(stacks) else {}


def apart(waiting: Mapping[int, Frame]) -> bool:
    """Ranks wait in different functions: they issued different collectives, so none will ever be complete."""
    return len({_key(frame) for frame in waiting.values()}) > 1


@dataclass(frozen=True, slots=True)
class Merged:
    """Stacks of all ranks laid over each other.

    Args:
        frame: the deepest frame that most ranks share.
        there: the ranks in it; ``elsewhere``: the others, by their own frame.
    """

    frame: Frame
    there: tuple[int, ...]
    elsewhere: Mapping[int, Frame]


def merge(stacks: Mapping[int, Stack]) -> Merged | None:
    """Walk from the outermost own frame inwards for as long as more than half of the ranks agree on the function.

    Ranks are compared by function, not by line: idle ranks differ there by a line or a frame.
    """
    paths = {rank: tuple(reversed(own_frames(stack))) for rank, stack in stacks.items() if own_frames(stack)}
    if not paths:
        return None
    there, frame = set(paths), None
    for depth in range(max(map(len, paths.values()))):
        votes = Counter(_key(paths[r][depth]) for r in there if depth < len(paths[r]))
        if not votes:
            break
        key, count = votes.most_common(1)[0]
        if count * 2 <= len(paths):
            break
        there = {r for r in there if depth < len(paths[r]) and _key(paths[r][depth]) == key}
        frame = paths[min(there)][depth]
    if frame is None:
        return None
    others = {r: paths[r][-1] for r in sorted(set(paths) - there)}
    return Merged(frame, tuple(sorted(there)), others)


def _key(frame: Frame) -> tuple[str, str]:
    return frame.name, frame.file
