"""Cut-down module texts with the shapes that the capture strategies look for."""

PAIR_MODEL = """\
class DeepseekV2DecoderLayer:
    def forward(self, positions, hidden_states, forward_batch, residual):
        hidden_states, residual = self.layer_communicator.prepare_attn(hidden_states, residual, forward_batch)
        return hidden_states, residual


class DeepseekV2Model:
    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux.append(hidden_states + residual)
            hidden_states, residual = self.layers[i](positions, hidden_states, forward_batch, residual)
        return self.norm(hidden_states, residual)
"""

NATIVE_MODEL = """\
class DeepseekV2Model:
    def forward(self, input_ids, positions, forward_batch, input_embeds=None):
        for i in range(self.start_layer, self.end_layer):
            hidden_states = self.layers[i](
                positions, hidden_states, captured_last_layer_outputs=aux if i in self.layers_to_capture else None
            )
        return self.norm(hidden_states)
"""

COMMUNICATOR = """\
class LayerCommunicator:
    def prepare_attn(self, hidden_states, residual, forward_batch):
        def inner():
            return None
        return hidden_states, residual
"""
