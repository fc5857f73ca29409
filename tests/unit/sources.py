"""Cut-down module texts with the shapes that the capture strategies look for, one generation of SGLang each."""

from __future__ import annotations

import ast
from textwrap import indent

from hsops.payload.hsops_hs_dump.code import Code, class_in, code

REGISTRY = """\
class _ModelRegistry:
    def resolve_model_cls(self, architectures):
        return self.models[architectures[0]], architectures[0]


ModelRegistry = _ModelRegistry()
"""

COMMUNICATOR = """\
class LayerCommunicator:
    def prepare_attn(self, hidden_states, residual, forward_batch):
        def inner():
            return None
        if self._sp_variant is not None:
            return self._sp_variant.prepare_attn(hidden_states, residual, forward_batch)
        return hidden_states, residual
"""


def _module(
    loop: str,
    layer: str,
    *,
    begin: str = "aux_hidden_states = []\n",
    number: str = "i",
    norm: str = "hidden_states, _ = self.norm(hidden_states, residual)\n",
    end: str = "return hidden_states if not aux_hidden_states else (hidden_states, aux_hidden_states)\n",
) -> str:
    """A module's text.

    Args:
        loop: what is done for each layer.
        layer: methods of the class ``Layer``.
        begin, norm, end: of the trunk's forward, around the loop; norm and end as most releases have them.
        number: the loop's variable.
    """
    loop = f"for {number} in range(self.start_layer, self.end_layer):\n{indent(loop, ' ' * 4)}"
    forward = "def forward(self, input_ids, positions, forward_batch, input_embeds=None):\n"
    forward += indent(begin + loop + norm + end, " " * 4)
    return f"class Model:\n{indent(forward, ' ' * 4)}\n\nclass Layer:\n{indent(layer, ' ' * 4)}"


# 0.5.4 to 0.5.13; with the loop's own sum, which is one rank's part where the all-reduce is left to the next layer
PREPARED = _module(
    loop="""\
with recorder.with_current_layer(i):
    if i in self.layers_to_capture:
        aux_hidden_states.append(hidden_states + residual)
    layer = self.layers[i]
    hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)
""",
    layer="""\
def forward(self, positions, hidden_states, forward_batch, residual):
    hidden_states, residual = self.layer_communicator.prepare_attn(hidden_states, residual, forward_batch)
    hidden_states = self.self_attn(positions, hidden_states, forward_batch)
    return self.layer_communicator.postprocess_layer(hidden_states, residual, forward_batch)
""",
)

# 0.5.14 to 0.5.20
COLLECTED = _module(
    begin="aux_hidden_states = AuxHiddenStatePacker(len(self.layers_to_capture))\n",
    loop="""\
layer = self.layers[i]
hidden_states, residual, topk_indices = layer(
    positions, hidden_states, forward_batch, residual,
    captured_last_layer_outputs=aux_hidden_states if i in self.layers_to_capture else None,
)
""",
    end="""\
if len(aux_hidden_states) == 0:
    return hidden_states
return hidden_states, aux_hidden_states.finalize()
""",
    layer="""\
def forward(self, positions, hidden_states, forward_batch, residual, captured_last_layer_outputs=None):
    hidden_states, residual = self.layer_communicator.prepare_attn_and_capture_last_layer_outputs(
        hidden_states, residual, forward_batch, captured_last_layer_outputs=captured_last_layer_outputs
    )
    return hidden_states, residual, None
""",
)

# 0.5.21 on: the residual is the batch's
STREAMED = _module(
    begin="residual_batch.start(forward_batch)\naux_hidden_states = AuxHiddenStateList()\n",
    loop="""\
hidden_states = self.layers[i](
    positions, hidden_states, forward_batch,
    capture_output=aux_hidden_states.capture if i in self.layers_to_capture else None,
)
""",
    norm="hidden_states = residual_batch.final_norm(hidden_states, forward_batch, self.norm)\n",
    end="return (hidden_states, aux_hidden_states) if aux_hidden_states else hidden_states\n",
    layer="""\
def __init__(self):
    self.attn_boundary, self.ffn_boundary = append_stages((declare_attn(), norm), (declare_ffn(), norm))

def forward(self, positions, hidden_states, forward_batch, capture_output=None):
    hidden_states = self.attn_boundary.prepare(hidden_states, forward_batch, capture=capture_output)
    return self.ffn_boundary.finish(self.mlp(hidden_states), forward_batch)
""",
)

# llama up to 0.5.21: no communicator, each layer reduces what it computes
SUMMED = _module(
    loop="""\
if i in self.layers_to_capture:
    aux_hidden_states.append(hidden_states + residual if residual is not None else hidden_states)
layer = self.layers[i]
hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)
""",
    layer="""\
def forward(self, positions, hidden_states, forward_batch, residual):
    if residual is None:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
    else:
        hidden_states, residual = self.input_layernorm(hidden_states, residual)
    hidden_states = self.self_attn(positions, hidden_states, forward_batch)
    hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
    return self.mlp(hidden_states), residual
""",
)

# gemma 4 up to 0.5.21: the stream is one value
SINGLE = _module(
    number="layer_idx",
    loop="""\
if layer_idx in self.layers_to_capture:
    aux_hidden_states.append(hidden_states)
hidden_states = self.layers[layer_idx](positions=positions, hidden_states=hidden_states)[0]
""",
    norm="hidden_states = self.norm(hidden_states)\n",
    layer="""\
def forward(self, positions, hidden_states, **kwargs):
    return (hidden_states + self.mlp(self.norm(hidden_states)),)
""",
)


def class_of(text: str, name: str) -> Code:
    """The class ``name`` of a module's text."""
    found = class_in(ast.parse(text), name)
    return code(name, [found] if found else [])
