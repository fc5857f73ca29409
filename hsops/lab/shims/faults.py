"""Ways in which a lab's server can be broken, to practise on.

Each is armed by one line in a ``.pth`` file of the lab and works in memory: no file of SGLang changes, so a fault can
never be confused with, or get in the way of, what ``hsops deploy`` writes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any, NoReturn

    from .hooks import Patch

RUNNER = "sglang.srt.model_executor.model_runner"
EMBEDDING = "sglang.srt.layers.vocab_parallel_embedding"
LOADER = "sglang.srt.model_loader.loader"
MODEL = "sglang.srt.models.deepseek_v2"

WRITES_PER_SECOND = 4
SLOW_LOAD_S = 60.0
PIECE = 1 << 16
SLEEP_S = 5.0
COMPILE = """import sys, time
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    sum(range(200_000))
    time.sleep(0.05)
"""


class Fault(NamedTuple):
    """What a user sees, and the patches that make it happen.

    ``deed``: what a rank does at the place where it goes wrong; such a fault may be put at any of ``PLACES``.
    """

    looks_like: str
    hooks: tuple[tuple[str, Patch], ...]
    deed: Callable[[], object] | None = None


def spin() -> NoReturn:
    """Busy and mute: burns a core, and a few times a second writes to an eventfd that nobody reads."""
    nobody = os.eventfd(0, os.EFD_NONBLOCK)
    while True:
        until = time.monotonic() + 1 / WRITES_PER_SECOND  # the clock is read without a system call
        while time.monotonic() < until:
            pass
        os.eventfd_write(nobody, 1)


def before_weights(deed: Callable[[list[str]], object]) -> Patch:
    """``deed(files)`` when the first weight is asked for.

    Which of its iterators SGLang takes depends on the version: one thread, or several with a buffer.
    """

    def patch(module: ModuleType) -> None:
        for name in [name for name in vars(module) if name.endswith("safetensors_weights_iterator")]:
            module.__dict__[name] = _after(deed, vars(module)[name])

    return patch


def _after(deed: Callable[[list[str]], object], iterate: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def weights_iterator(files: list[str], *args: Any, **kwargs: Any) -> Iterator[Any]:
        deed(list(files))
        yield from iterate(files, *args, **kwargs)

    return weights_iterator


def load_slowly(files: list[str]) -> None:
    """Weights arrive at a trickle, read from the disk over and over: slow, not stuck."""
    for _ in _trickle(files, slow_s()):
        pass


def load_sleepily(files: list[str]) -> None:
    """The last rank sleeps nearly all the time, in between it reads a little: a network disk with bad days."""
    if is_last():
        for _ in _trickle(files, slow_s(), pause=SLEEP_S):
            pass


def slow_s() -> float:
    """How long a slow fault takes, in seconds."""
    return float(os.environ.get("HSOPS_LAB_SLOW_LOAD_S", SLOW_LOAD_S))


def _trickle(files: list[str], seconds: float, pause: float = 0.05) -> Iterator[int]:
    """Read ``files`` again and again for ``seconds``, a piece every ``pause`` seconds, past the page cache."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name in files:
            with open(name, "rb", buffering=0) as file:  # noqa: PTH123
                while time.monotonic() < until and (piece := file.read(PIECE)):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    yield len(piece)
                    time.sleep(pause)


def compile_long() -> None:
    """The first rank waits for a child named nvcc that computes and says nothing: a JIT on its first start."""
    if _rank() != 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        nvcc = f"{folder}/nvcc"
        os.symlink(os.path.realpath(sys.executable), nvcc)  # noqa: PTH211 - a rank has no pathlib to spare
        subprocess.run([nvcc, "-I", "-S", "-c", COMPILE, str(slow_s()), "batch_prefill.cu"], check=True)


def wait_for_a_futex() -> None:
    """The last rank waits for a lock that nobody frees."""
    if is_last():
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def wait_for_a_collective() -> None:
    """The last rank waits for the first one in an operation that the first never joins."""
    import torch
    import torch.distributed as ranks

    if is_last():
        ranks.recv(torch.zeros(7), src=0)


def signal_the_last(number: int) -> Callable[[], None]:
    """The last rank sends itself a signal."""
    return lambda: os.kill(os.getpid(), number) if is_last() else None


def is_last() -> bool:
    """This is the last rank. Before the ranks know each other: any but the first."""
    import torch.distributed as ranks  # asked here: where a ModelRunner keeps its rank differs by version

    return ranks.get_rank() == ranks.get_world_size() - 1 if ranks.is_initialized() else _rank() > 0


def _rank() -> int:
    """By the process's title: ``sglang::scheduler_TP1``; 0 without one."""
    with open("/proc/self/cmdline", "rb") as file:  # noqa: PTH123
        found = re.search(rb"TP(\d+)", file.read())
    return int(found.group(1)) if found else 0


def expect_aux_states(module: ModuleType) -> None:
    """The wrapper unpacks auxiliary hidden states that the model was never told to capture (the first patch, v1)."""
    build = module.DeepseekV2ForCausalLM.__init__

    def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        build(model, *args, **kwargs)
        model.capture_aux_hidden_states = True

    module.DeepseekV2ForCausalLM.__init__ = __init__


def around(names: tuple[str, ...], *, first: bool) -> Callable[[Callable[[], object]], Patch]:
    """``deed()`` before (``first``) or after the ModelRunner's method of whichever of ``names`` this SGLang has."""

    def with_deed(deed: Callable[[], object]) -> Patch:
        def patch(module: ModuleType) -> None:
            for name in names:
                if method := getattr(module.ModelRunner, name, None):
                    setattr(module.ModelRunner, name, _beside(method, deed, first=first))

        return patch

    return with_deed


def _beside(method: Callable[..., Any], deed: Callable[[], object], *, first: bool) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if first:
            deed()
        found = method(*args, **kwargs)
        if not first:
            deed()
        return found

    return wrapped


def in_forward(deed: Callable[[], object]) -> Patch:
    """``deed()`` inside the model, in the first pass that it is given: the warm-up request's prefill."""
    to_come = [deed]

    def patch(module: ModuleType) -> None:
        cls = module.VocabParallelEmbedding
        cls.forward = _beside(cls.forward, lambda: to_come.pop()() if to_come else None, first=True)

    return patch


# where a fault with a deed may strike (``NAME@PLACE``): the stage that is then under way
PLACES: dict[str, tuple[str, Callable[[Callable[[], object]], Patch]]] = {
    "distributed": (RUNNER, around(("init_torch_distributed",), first=True)),
    "weights": (LOADER, lambda deed: before_weights(lambda _: deed())),
    "kv-cache": (RUNNER, around(("load_model",), first=False)),
    "http": (RUNNER, around(("init_memory_pool", "alloc_memory_pool"), first=False)),
    "warm-up": (EMBEDDING, in_forward),
}


def hooks_of(text: str) -> tuple[tuple[str, Patch], ...]:
    """The patches of ``NAME`` or ``NAME@PLACE``.

    Raises:
        KeyError: there is no such fault or place, or that fault has one place only.
    """
    name, _, place = text.partition("@")
    fault = FAULTS[name]
    if not place:
        return fault.hooks
    if fault.deed is None:
        raise KeyError(place)
    module, put = PLACES[place]
    return ((module, put(fault.deed)),)


def _after_load(looks_like: str, deed: Callable[[], object]) -> Fault:
    module, put = PLACES["kv-cache"]
    return Fault(looks_like, ((module, put(deed)),), deed)


FAULTS = {
    "busy-wait": _after_load(
        "after the weights every rank spins, writing to an eventfd; the port never opens, the log is silent", spin
    ),
    "busy-wait-warmup": Fault(
        "the port opens, /health stays 503: every rank spins inside the warm-up's forward pass",
        ((EMBEDDING, in_forward(spin)),),
    ),
    "slow-load": Fault(
        "the weights take a minute (HSOPS_LAB_SLOW_LOAD_S seconds), reading all the time: slow, not hung",
        ((LOADER, before_weights(load_slowly)),),
    ),
    "sleepy-load": Fault(
        "the last rank's weights take as long, asleep save for a small read every few seconds: slow, not hung",
        ((LOADER, before_weights(load_sleepily)),),
    ),
    "compile": _after_load(
        "after the weights a compiler runs below the first rank for as long, without a line: slow, not hung",
        compile_long,
    ),
    "v1-patch": Fault(
        "capture_aux_hidden_states is set but nothing is captured: the first forward pass fails",
        ((MODEL, expect_aux_states),),
    ),
    "stopped-rank": _after_load(
        "the last rank stops (SIGSTOP) after its weights; the others wait for it for ever",
        signal_the_last(signal.SIGSTOP),
    ),
    "killed-rank": _after_load(
        "the last rank is killed (SIGKILL) after its weights, as the OOM killer does", signal_the_last(signal.SIGKILL)
    ),
    "futex-wait": _after_load(
        "after its weights the last rank waits for a lock that nobody frees, the others for it", wait_for_a_futex
    ),
    "lost-collective": _after_load(
        "after its weights the last rank waits in a collective of its own, the others in the next one",
        wait_for_a_collective,
    ),
}
