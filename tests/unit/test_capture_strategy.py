"""Choosing a capture strategy by the shape of the installed code."""

from __future__ import annotations

import pytest

from hsops.payload.hsops_hs_dump.strategy import Choice, choose
from tests.unit.sources import COLLECTED, COMMUNICATOR, PREPARED, SINGLE, STREAMED, SUMMED, class_of


def chosen(text: str, communicator: str = COMMUNICATOR) -> Choice:
    """The choice for a module with a ``Model`` of ``Layer``."""
    layer = class_of(text, "Layer")
    communicators = [class_of(communicator, "LayerCommunicator")] if "layer_communicator" in text else []
    return choose(class_of(text, "Model"), [layer] if layer.methods else [], communicators)


@pytest.mark.parametrize(
    "text,strategy",
    [
        (PREPARED, "prepare-attn"),
        (COLLECTED, "layers-to-capture"),
        (STREAMED, "layers-to-capture"),
        (SUMMED, "layer-input"),
        (SINGLE, "layer-input"),
        (COLLECTED.replace("i in self.layers_to_capture", "getattr(layer, '_marked', False)"), "prepare-attn"),
        (STREAMED.replace("i in self.layers_to_capture", "getattr(layer, '_marked', False)"), "residual-stream"),
        (STREAMED.replace("i in self", "i - 1 in self"), "residual-stream"),
        (STREAMED.replace("capture=capture_output", ""), "residual-stream"),
        (SUMMED.replace("hidden_states + residual if", "snapshot(hidden_states, residual) if"), "layer-input"),
        (PREPARED.replace("if i in", "if i + 1 in"), "prepare-attn"),
    ],
)
def test_the_strategy_goes_by_the_code(text: str, strategy: str) -> None:
    """SGLang's own capture only where it is exactly boundary i behind the all-reduce; else the next way that fits."""
    assert chosen(text).strategy == strategy


def test_a_collector_that_computes_something_is_not_trusted() -> None:
    """What a function of forward's own makes of the state may be anything."""
    text = STREAMED.replace("aux_hidden_states.capture if", "capture if").replace(
        "        residual_batch.start", "        def capture(value): ...\n        residual_batch.start"
    )

    assert chosen(text).strategy == "residual-stream"


def test_a_second_thing_done_with_the_wanted_layers_is_not_trusted() -> None:
    """A loop that captures twice would give two states a layer."""
    twice = COLLECTED.replace(
        "            layer = self",
        "            if i in self.layers_to_capture:\n                pass\n            layer = self",
    )

    assert chosen(twice).strategy == "prepare-attn"


@pytest.mark.parametrize(
    "text,missing",
    [
        (PREPARED.replace("self.norm", "self.last"), "self.norm"),
        (PREPARED.replace("positions, forward_batch, input", "positions, batch, input"), "forward_batch"),
        (PREPARED.replace("class Layer", "class Other"), "the class of its layers"),
        (PREPARED.replace("prepare_attn", "prepare"), "layer_communicator.prepare_attn in each layer"),
        ("class Other:\n    pass\n", "Model.forward(..., forward_batch)"),
        # a layer that does not use the residual it is given, and one that leaves its all-reduce to the next
        (
            SUMMED.replace("        if residual is None:", "        residual = hidden_states\n        if True:"),
            "start with",
        ),
        (
            SUMMED.replace("return self.mlp", "self._sglang_needs_allreduce_fusion = 1\n        return self.mlp"),
            "start",
        ),
        # layers that run twice
        (
            SUMMED.replace("        for i in", "        for _ in range(2):\n         for i in"),
            "one loop over self.layers",
        ),
        # a residual stream that is not plainly added to, and no capture of SGLang's
        (
            STREAMED.replace("declare_attn()", "declare_attn(update=PostNormAdd(norm))").replace(
                "i in self", "1 in self"
            ),
            "plain residual",
        ),
    ],
)
def test_an_unknown_shape_says_what_was_looked_for(text: str, missing: str) -> None:
    """And chooses nothing."""
    found = chosen(text)

    assert found.strategy == "" and missing in found.missing


@pytest.mark.parametrize("communicator", ["", COMMUNICATOR.replace("hidden_states, residual\n", "hidden_states\n")])
def test_a_communicator_that_gives_no_pair_is_not_known(communicator: str) -> None:
    """Its second value is what would be taken."""
    found = chosen(PREPARED, communicator)

    assert found.strategy == "" and "LayerCommunicator.prepare_attn returning a pair" in found.missing


def test_a_communicator_with_a_prepare_attn_of_its_own_is_not_known() -> None:
    """Such as the one of multi-stream residuals: what it returns is no boundary."""
    text = COMMUNICATOR.replace("LayerCommunicator", "MHCLayerCommunicator")
    layer, other = class_of(PREPARED, "Layer"), class_of(text, "MHCLayerCommunicator")

    assert choose(class_of(PREPARED, "Model"), [layer], [other]).strategy == ""
