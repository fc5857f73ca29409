"""The strategies at work: each a context around one call of the model's forward, leaving nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from .strategy import LAYERS_TO_CAPTURE, PREPARE_ATTN

Take = Callable[[int, object], None]
Untangle = Callable[[Any], Any]  # from what forward returned to what the caller must get


@contextmanager
def _prepare_attn(model: Any, boundaries: Sequence[int], take: Take) -> Iterator[Untangle]:
    """The wanted layers' communicators get an attribute that shadows their method for this one call."""
    communicators = [model.layers[k].layer_communicator for k in boundaries]

    def tapped(slot: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_attn(*args: Any, **kwargs: Any) -> Any:
            prepared = original(*args, **kwargs)
            take(slot, prepared[1])
            return prepared

        return prepare_attn

    try:
        for slot, communicator in enumerate(communicators):
            communicator.prepare_attn = tapped(slot, communicator.prepare_attn)
        yield lambda returned: returned
    finally:
        for communicator in communicators:
            communicator.__dict__.pop("prepare_attn", None)


@contextmanager
def _layers_to_capture(model: Any, boundaries: Sequence[int], take: Take) -> Iterator[Untangle]:
    """With the list set, forward returns ``(hidden, captured)``; its caller expects the bare ``hidden``."""

    def untangle(returned: Any) -> Any:
        if not isinstance(returned, tuple) or len(returned) != 2:
            return returned
        hidden, captured = returned
        if hasattr(captured, "chunk"):  # 0.5.17 on: one tensor [rows, K * H]
            captured = captured.chunk(len(boundaries), dim=-1)
        for slot, state in enumerate(captured):  # in the order of the layers, whatever the list's
            take(slot, state)
        return hidden

    before = model.layers_to_capture
    model.layers_to_capture = list(boundaries)
    try:
        yield untangle
    finally:
        model.layers_to_capture = before


@contextmanager
def final_states(model: Any, before: int | None, after: int | None, take: Take) -> Iterator[None]:
    """The states around the last norm.

    Args:
        before: slot of the sum that goes into it: its second result, or its only input where nothing was to be added.
        after: slot of what comes out of it. None: not wanted.
    """

    def seen(_module: Any, args: Any, output: Any) -> None:
        pair = isinstance(output, tuple)
        if before is not None:
            take(before, output[1] if pair else args[0])
        if after is not None:
            take(after, output[0] if pair else output)

    hook = model.norm.register_forward_hook(seen)
    try:
        yield
    finally:
        hook.remove()


TAPS: dict[str, Callable[[Any, Sequence[int], Take], AbstractContextManager[Untangle]]] = {
    PREPARE_ATTN.name: _prepare_attn,
    LAYERS_TO_CAPTURE.name: _layers_to_capture,
}
