"""Captures as they are written first, in place of ours, to show that the comparison tells them from right ones.

``install`` puts this file and a ``.pth`` line into a lab; there it takes the place of the payload's strategies in
servers that have HSOPS_NAIVE set: one kind for each boundary, separated by commas. Everything else stays ours: which
requests, which rows, which file. HSOPS_NAIVE_FINAL takes the last layer's output for the last state, without
the residual; HSOPS_NAIVE_RADIX switches the prefix cache on behind the backs of command line and contract. With
HSOPS_OTHERWISE the capture is right and the model is odd: in passes of more than 512 rows its embedding is another one.
"""

from __future__ import annotations

import inspect
import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import ModuleType
    from typing import Any

NAME, VARIABLE = "hsops_test_naive", "HSOPS_NAIVE"
FINAL, RADIX = "HSOPS_NAIVE_FINAL", "HSOPS_NAIVE_RADIX"
OTHERWISE, LARGE = "HSOPS_OTHERWISE", 512
PLAIN_ADD, NO_CLONE = "plain-add", "no-clone"


def install(site: Path) -> None:
    """Into the lab's site-packages. A lab's ``--purge`` takes it away again."""
    import shutil

    shutil.copy(__file__, site / f"{NAME}.py")
    (site / f"{NAME}.pth").write_text(f"import {NAME}; {NAME}.start()\n")


def start() -> None:
    """In every interpreter of the lab."""
    asked = [patch for variable, patches in WRONG.items() if os.environ.get(variable) for patch in patches]
    if asked:
        from hsops_lab_shims import hooks

        for module, patch in asked:
            hooks.after_import(module, patch)


def replace(taps: ModuleType) -> None:
    """Whatever strategy the payload chooses, the kinds that were asked for come instead."""
    for strategy in taps.TAPS:
        taps.TAPS[strategy] = tap


def forget_residual(taps: ModuleType) -> None:
    """The last state is what goes into the last norm first."""

    @contextmanager
    def final_states(model: Any, before: int | None, _after: int | None, take: Callable[..., None]) -> Iterator[None]:
        hook = model.norm.register_forward_pre_hook(lambda _norm, args: take(before, args[0]))
        try:
            yield
        finally:
            hook.remove()

    taps.__dict__["final_states"] = final_states


def cache_prefixes(scheduler: ModuleType) -> None:
    """In every rank, after the command line was read."""
    build = scheduler.Scheduler.__init__

    def __init__(self: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
        server_args.disable_radix_cache = False
        build(self, server_args, *args, **kwargs)

    scheduler.Scheduler.__init__ = __init__


def compute_otherwise(embedding: ModuleType) -> None:
    """As kernels do that are chosen by the shape of a pass, only more so; the same on every rank."""
    import torch

    forward = embedding.VocabParallelEmbedding.forward

    def other(self: Any, ids: Any) -> Any:
        found = forward(self, ids)
        if len(found) <= LARGE:
            return found
        return found * (1 + 0.3 * torch.sin(torch.arange(found.shape[-1], device=found.device))).to(found.dtype)

    embedding.VocabParallelEmbedding.forward = other


def object_to_nothing(contract: ModuleType) -> None:
    """The capture would refuse, and rightly so."""
    contract.__dict__["problems"] = lambda *_args, **_kwargs: []


@contextmanager
def tap(model: Any, boundaries: Sequence[int], take: Callable[[int, Any], None]) -> Iterator[Callable[[Any], Any]]:
    """One call of the model's forward."""
    kinds = dict(zip(boundaries, os.environ[VARIABLE].split(","), strict=True))
    kept: dict[int, Any] = {}
    undo = []
    for slot, (k, kind) in enumerate(kinds.items()):
        undo.append(KINDS[kind](model.layers[k], slot, take, kept))
    try:
        yield lambda returned: returned
    finally:
        for slot, state in kept.items():  # the pass is over: what was kept is looked at now
            take(slot, state)
        for end in undo:
            end()


def plain_add(layer: Any, slot: int, take: Callable[[int, Any], None], _kept: dict[int, Any]) -> Callable[[], None]:
    """What the loop holds before a layer: ``hidden_states + residual``."""
    names = list(inspect.signature(layer.forward).parameters)

    def seen(_layer: Any, args: Any, kwargs: Any) -> None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        hidden, residual = given["hidden_states"], given["residual"]
        take(slot, hidden if residual is None else hidden + residual)

    return layer.register_forward_pre_hook(seen, with_kwargs=True).remove


def no_clone(layer: Any, slot: int, _take: Callable[[int, Any], None], kept: dict[int, Any]) -> Callable[[], None]:
    """The right tensor, but only a reference to it until the pass is over."""
    communicator = layer.layer_communicator
    prepare = communicator.prepare_attn

    def prepare_attn(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(*args, **kwargs)
        kept[slot] = prepared[1]
        return prepared

    communicator.prepare_attn = prepare_attn
    return lambda: communicator.__dict__.pop("prepare_attn", None)


KINDS = {PLAIN_ADD: plain_add, NO_CLONE: no_clone}
WRONG = {
    VARIABLE: (("hsops_hs_dump.taps", replace),),
    FINAL: (("hsops_hs_dump.taps", forget_residual),),
    OTHERWISE: (("sglang.srt.layers.vocab_parallel_embedding", compute_otherwise),),
    RADIX: (("sglang.srt.managers.scheduler", cache_prefixes), ("hsops_hs_dump.contract", object_to_nothing)),
}
