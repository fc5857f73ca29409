"""Ways in which a lab's server can be broken, to practise on.

Each is armed by one line in a ``.pth`` file of the lab and works in memory: no file of SGLang changes, so a fault can
never be confused with, or get in the way of, what ``hsops deploy`` writes.
"""

from __future__ import annotations

import os
import signal
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


class Fault(NamedTuple):
    """What a user sees, and the patches that make it happen."""

    looks_like: str
    hooks: tuple[tuple[str, Patch], ...]


def spin() -> NoReturn:
    """Busy and mute: burns a core, and a few times a second writes to an eventfd that nobody reads."""
    nobody = os.eventfd(0, os.EFD_NONBLOCK)
    while True:
        until = time.monotonic() + 1 / WRITES_PER_SECOND  # the clock is read without a system call
        while time.monotonic() < until:
            pass
        os.eventfd_write(nobody, 1)


def spin_after_load(module: ModuleType) -> None:
    """Every rank spins once its weights are there: no KV cache, no port, no further log line."""
    load = module.ModelRunner.load_model

    def load_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
        load(runner, *args, **kwargs)
        spin()

    module.ModelRunner.load_model = load_model


def spin_in_forward(module: ModuleType) -> None:
    """Every rank spins inside the model, in the first pass it is given: the warm-up request's prefill."""

    def forward(_embedding: Any, _ids: Any, *_args: Any, **_kwargs: Any) -> Any:
        spin()

    module.VocabParallelEmbedding.forward = forward


def load_slowly(module: ModuleType) -> None:
    """Weights arrive at a trickle, read from the disk over and over: slow, not stuck.

    Which of its iterators SGLang takes depends on the version: one thread, or several with a buffer.
    """
    for name in [name for name in vars(module) if name.endswith("safetensors_weights_iterator")]:
        module.__dict__[name] = _slowly(vars(module)[name])


def _slowly(iterate: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def weights_iterator(files: list[str], *args: Any, **kwargs: Any) -> Iterator[Any]:
        seconds = float(os.environ.get("HSOPS_LAB_SLOW_LOAD_S", SLOW_LOAD_S))
        for _ in _trickle(list(files), seconds):
            pass
        yield from iterate(files, *args, **kwargs)

    return weights_iterator


def _trickle(files: list[str], seconds: float) -> Iterator[int]:
    """Read ``files`` again and again for ``seconds``, 20 pieces a second, past the page cache."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name in files:
            with open(name, "rb", buffering=0) as file:  # noqa: PTH123
                while time.monotonic() < until and (piece := file.read(PIECE)):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    yield len(piece)
                    time.sleep(0.05)


def expect_aux_states(module: ModuleType) -> None:
    """The wrapper unpacks auxiliary hidden states that the model was never told to capture (the first patch, v1)."""
    build = module.DeepseekV2ForCausalLM.__init__

    def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        build(model, *args, **kwargs)
        model.capture_aux_hidden_states = True

    module.DeepseekV2ForCausalLM.__init__ = __init__


def last_rank_after_load(signal_number: int) -> Callable[[ModuleType], None]:
    """The last rank sends itself a signal once its weights are there; the others wait for it."""

    def patch(module: ModuleType) -> None:
        load = module.ModelRunner.load_model

        def load_model(runner: Any, *args: Any, **kwargs: Any) -> Any:
            import torch.distributed as ranks  # asked here: where a ModelRunner keeps its rank differs by version

            loaded = load(runner, *args, **kwargs)
            if ranks.get_rank() == ranks.get_world_size() - 1:
                os.kill(os.getpid(), signal_number)
            return loaded

        module.ModelRunner.load_model = load_model

    return patch


FAULTS = {
    "busy-wait": Fault(
        "after the weights every rank spins, writing to an eventfd; the port never opens, the log is silent",
        ((RUNNER, spin_after_load),),
    ),
    "busy-wait-warmup": Fault(
        "the port opens, /health stays 503: every rank spins inside the warm-up's forward pass",
        ((EMBEDDING, spin_in_forward),),
    ),
    "slow-load": Fault(
        "the weights take a minute (HSOPS_LAB_SLOW_LOAD_S seconds), reading all the time: slow, not hung",
        ((LOADER, load_slowly),),
    ),
    "v1-patch": Fault(
        "capture_aux_hidden_states is set but nothing is captured: the first forward pass fails",
        ((MODEL, expect_aux_states),),
    ),
    "stopped-rank": Fault(
        "the last rank stops (SIGSTOP) after its weights; the others wait for it for ever",
        ((RUNNER, last_rank_after_load(signal.SIGSTOP)),),
    ),
    "killed-rank": Fault(
        "the last rank is killed (SIGKILL) after its weights, as the OOM killer does",
        ((RUNNER, last_rank_after_load(signal.SIGKILL)),),
    ),
}
