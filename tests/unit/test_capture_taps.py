"""The strategies at work, on models whose states are plain numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hsops.payload.hsops_hs_dump import taps
from tests.unit.built_models import Trunk


def taken_by(strategy: str, model: Any, boundaries: list[int], *args: Any) -> tuple[dict[int, Any], Any]:
    """slot -> state, and what forward returned."""
    states: dict[int, Any] = {}
    take, final = states.__setitem__, len(boundaries)
    with taps.TAPS[strategy](model, boundaries, take) as untangle, taps.final_states(model, final, None, take):
        returned = untangle(model(*args))
    return states, returned


def test_the_input_of_a_layer_is_the_sum_that_it_is_called_with() -> None:
    """Boundary 0 too, where there is no residual yet; nothing stays behind."""
    model = Trunk()

    states, returned = taken_by("layer-input", model, [0, 1, 2], 1, None, "batch")

    assert states == {0: 1, 1: 11, 2: 31, 3: 61} and returned == 6100
    assert all("forward" not in vars(layer) for layer in model.layers) and not model.norm.hooks


def test_a_sum_that_was_left_to_the_layer_is_not_taken() -> None:
    """One rank's part is no boundary."""
    part = type("Part", (int,), {"_sglang_needs_allreduce_fusion": True})

    assert isinstance(taps._sum(part(1), 2), taps.SumNotComplete)


class Communicator:
    """Adds what the layer before left to it."""

    def prepare_attn(self, hidden: int, residual: int) -> tuple[int, int]:
        """(normal, sum)"""
        return (hidden + residual) * 100, hidden + residual


class Entry:
    """Writes the batch's residual stream."""

    def prepare(self, hidden: int, forward_batch: Any, **_call: Any) -> int:
        """The normal state."""
        forward_batch.residual_stream.residual += hidden
        return forward_batch.residual_stream.residual * 100  # type: ignore[no-any-return]


class Prepared(Trunk):
    """Layers with communicators."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.times = times
        for layer in self.layers:
            layer.layer_communicator, layer.attn_boundary = Communicator(), Entry()  # type: ignore[attr-defined]

    def forward(self, hidden: int, batch: Any = None) -> Any:
        """The last sum."""
        residual = 0
        for layer in self.layers * self.times:
            if batch is None:
                hidden, residual = layer.layer_communicator.prepare_attn(hidden, residual)  # type: ignore[attr-defined]
            else:
                layer.attn_boundary.prepare(hidden, forward_batch=batch)  # type: ignore[attr-defined]
            hidden = layer.number
        return self.norm(hidden, residual)[1]


def test_the_second_value_of_prepare_attn_is_the_boundary() -> None:
    """Nothing stays behind."""
    model = Prepared()

    states, returned = taken_by("prepare-attn", model, [0, 2], 1)

    assert states == {0: 1, 1: 31, 2: 61} and returned == 61
    assert all(not vars(layer.layer_communicator) for layer in model.layers)  # type: ignore[attr-defined]


def test_the_residual_stream_is_read_behind_the_layers_entry() -> None:
    """Nothing stays behind."""
    model, batch = Prepared(), SimpleNamespace(residual_stream=SimpleNamespace(residual=0))

    states, _ = taken_by("residual-stream", model, [1, 2], 1, batch)

    assert (states[0], states[1]) == (11, 31)
    assert all(not vars(layer.attn_boundary) for layer in model.layers)  # type: ignore[attr-defined]


def test_a_layer_that_runs_twice_has_no_boundary() -> None:
    """The second state would overwrite the first."""
    states, _ = taken_by("prepare-attn", Prepared(times=2), [1], 1)

    assert isinstance(states[0], taps.RanTwice)


@pytest.mark.parametrize("strategy", ["prepare-attn", "residual-stream", "layer-input"])
def test_what_somebody_else_put_there_stays(strategy: str) -> None:
    """A method that is shadowed already, by a profiler for one, is called by ours and is there afterwards."""
    model, called = Prepared(), []
    layer: Any = model.layers[1]
    owner, name = {
        "prepare-attn": (layer.layer_communicator, "prepare_attn"),
        "residual-stream": (layer.attn_boundary, "prepare"),
        "layer-input": (layer, "forward"),
    }[strategy]
    theirs = vars(owner)[name] = lambda *_, **__: called.append(1)

    with taps.TAPS[strategy](model, [1], lambda _slot, _state: None):
        assert vars(owner)[name] is not theirs
        getattr(owner, name)(1, 2)

    assert vars(owner)[name] is theirs and called == [1]


def test_a_state_that_cannot_be_read_is_what_is_taken() -> None:
    """The pass goes on; its samples have the reason."""
    model = Prepared()
    model.layers[1].attn_boundary = type("Silent", (), {"prepare": lambda *_, **__: 0})()  # type: ignore[attr-defined]
    states: dict[int, Any] = {}

    with taps.TAPS["residual-stream"](model, [1], states.__setitem__):
        model.layers[1].attn_boundary.prepare(1, forward_batch=SimpleNamespace())  # type: ignore[attr-defined]

    assert isinstance(states[0], AttributeError)


@pytest.mark.parametrize("captured", [[11, 31], SimpleNamespace(chunk=lambda _k, dim: (11, 31))])
def test_sglangs_own_capture_is_on_for_the_call_only(captured: Any) -> None:
    """Its caller gets the bare states, and the list is what it was before."""

    class Native(Trunk):
        def forward(self, input_ids: Any) -> Any:
            assert self.layers_to_capture == [1, 2]
            return self.norm(1, 2)[0], captured

    model = Native()
    states, returned = taken_by("layers-to-capture", model, [1, 2], 1)

    assert states == {0: 11, 1: 31, 2: 3} and returned == 300 and model.layers_to_capture == []


def test_a_norm_that_runs_twice_has_no_final_state() -> None:
    """Which call is the model's last one is not known; nor is a call without a positional input any reason to raise."""

    class Twice(Trunk):
        def forward(self, *_: Any) -> Any:
            return self.norm(self.norm(1), 2)[0]

    class Named(Trunk):
        def forward(self, *_: Any) -> Any:
            return self.norm(hidden=1)

    twice, _ = taken_by("prepare-attn", Twice(), [], 1)
    named, returned = taken_by("prepare-attn", Named(), [], 1)

    assert isinstance(twice[0], taps.RanTwice)
    assert isinstance(named[0], IndexError) and returned == 100
