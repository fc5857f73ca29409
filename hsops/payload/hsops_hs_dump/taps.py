"""The strategies at work: each a context around one call of the trunk's forward, leaving nothing behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from .shape import BOUNDARY, COMMUNICATOR, WANTED
from .strategy import LAYER_INPUT, LAYERS_TO_CAPTURE, PREPARE_ATTN, RESIDUAL_STREAM

Take = Callable[[int, object], None]
Untangle = Callable[[Any], Any]  # from what forward returned to what the caller must get
Seen = Callable[[Any, Any, Any], object]  # args, kwargs and result of a call -> the state
_FUSED = "_sglang_needs_allreduce_fusion"
_NOTHING = object()  # an attribute that is not there


class RanTwice:
    """Taken instead of a state that came by a second time."""


class SumNotComplete:
    """Taken instead of a state that is one rank's part of a sum."""


@contextmanager
def _prepare_attn(model: Any, boundaries: Sequence[int], take: Take) -> Iterator[Untangle]:
    """The wanted layers' communicators get an attribute that shadows their method for this one call."""
    communicators = [getattr(model.layers[k], COMMUNICATOR) for k in boundaries]

    def second(_args: Any, _kwargs: Any, prepared: Any) -> object:
        return prepared[1]

    with _shadowed(communicators, "prepare_attn", lambda _owner: second, take):
        yield _as_it_is


@contextmanager
def _residual_stream(model: Any, boundaries: Sequence[int], take: Take) -> Iterator[Untangle]:
    """As ``prepare-attn``: what the layer's entry has written into the batch's residual stream."""
    entries = [getattr(model.layers[k], BOUNDARY) for k in boundaries]

    def written(args: Any, kwargs: Any, _prepared: Any) -> object:
        batch = args[1] if len(args) > 1 else kwargs["forward_batch"]
        return batch.residual_stream.residual

    with _shadowed(entries, "prepare", lambda _owner: written, take):
        yield _as_it_is


@contextmanager
def _layer_input(model: Any, boundaries: Sequence[int], take: Take) -> Iterator[Untangle]:
    """The wanted layers' forward is shadowed; their input is summed before they run, as they write into it."""

    def given(layer: Any) -> Seen:
        hidden, residual = (argument(type(layer).forward, name) for name in ("hidden_states", "residual"))
        return lambda args, kwargs, _nothing: _sum(hidden(args, kwargs), residual(args, kwargs))

    with _shadowed([model.layers[k] for k in boundaries], "forward", given, take, before=True):
        yield _as_it_is


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

    before = getattr(model, WANTED)
    setattr(model, WANTED, list(boundaries))
    try:
        yield untangle
    finally:
        setattr(model, WANTED, before)


@contextmanager
def final_states(model: Any, before: int | None, after: int | None, take: Take) -> Iterator[None]:
    """The states around the last norm.

    Args:
        before: slot of the sum that goes into it: its second result, or its only input where nothing was to be added.
        after: slot of what comes out of it. None: not wanted.
    """

    seen: set[int] = set()

    def called(_module: Any, args: Any, output: Any) -> None:
        pair = isinstance(output, tuple)
        if before is not None:
            _take_once(before, lambda: output[1] if pair else args[0], take, seen)
        if after is not None:
            _take_once(after, lambda: output[0] if pair else output, take, seen)

    hook = model.norm.register_forward_hook(called)
    try:
        yield
    finally:
        hook.remove()


def argument(function: Callable[..., Any], name: str) -> Callable[[Any, Any], Any]:
    """What a method's call gives for a parameter: (args without self, kwargs) -> its value, None when not given."""
    names = list(inspect.signature(function).parameters)
    place = names.index(name) - 1 if name in names else -1

    def given(args: Any, kwargs: Any) -> Any:
        return args[place] if 0 <= place < len(args) else kwargs.get(name)

    return given


TAPS: dict[str, Callable[[Any, Sequence[int], Take], AbstractContextManager[Untangle]]] = {
    LAYERS_TO_CAPTURE.name: _layers_to_capture,
    PREPARE_ATTN.name: _prepare_attn,
    RESIDUAL_STREAM.name: _residual_stream,
    LAYER_INPUT.name: _layer_input,
}


@contextmanager
def _shadowed(
    owners: Sequence[Any], method: str, seen_of: Callable[[Any], Seen], take: Take, *, before: bool = False
) -> Iterator[None]:
    """Each owner's method is shadowed by one that takes a state of each call, owner i's into slot i.

    Args:
        owners: objects, each once.
        method: of all of them.
        seen_of: owner -> what reads the state of a call.
        take: gets the states.
        before: read before the call, whose result is None then; else after it.
    """
    seen: set[int] = set()

    def tapped(slot: int, owner: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        state = seen_of(owner)

        def call(*args: Any, **kwargs: Any) -> Any:
            if before:
                _take_once(slot, lambda: state(args, kwargs, None), take, seen)
            result = original(*args, **kwargs)
            if not before:
                _take_once(slot, lambda: state(args, kwargs, result), take, seen)
            return result

        return call

    had = [vars(owner).get(method, _NOTHING) for owner in owners]  # somebody else may shadow it too
    try:
        for slot, owner in enumerate(owners):
            vars(owner)[method] = tapped(slot, owner, getattr(owner, method))
        yield
    finally:
        for owner, kept in zip(owners, had, strict=True):
            vars(owner).pop(method, None)
            if kept is not _NOTHING:
                vars(owner)[method] = kept


def _take_once(slot: int, state: Callable[[], object], take: Take, seen: set[int]) -> None:
    """Nothing here may raise into the model's forward; what cannot be read is taken as what it is, and refused."""
    if slot in seen:
        take(slot, RanTwice())
        return
    seen.add(slot)
    try:
        value = state()
    except Exception as error:  # noqa: BLE001 - it becomes the samples' reason
        value = error
    take(slot, value)


def _sum(hidden: Any, residual: Any) -> object:
    if getattr(hidden, _FUSED, False):
        return SumNotComplete()
    return hidden if residual is None else hidden + residual


def _as_it_is(returned: Any) -> Any:
    return returned
