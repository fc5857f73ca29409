"""The independent reference: Hugging Face transformers' DeepSeek-V3 in float32, eager attention, one prompt a pass.

Run by the lab's interpreter: ``python reference.py MODEL PROMPTS.json OUT.npz``. Writes ``<id>/<k>`` [T, H], the input
of layer k, and ``<id>/final``, the input of the last norm. It shares no line with the capture.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3ForCausalLM


def main(model_path: str, prompts_path: str, out: str) -> None:
    model = DeepseekV3ForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="eager").eval()
    states: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            states[name] = (args[0] if args else kwargs["hidden_states"])[0].clone()

        return hook

    for k, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(keep(str(k)), with_kwargs=True)
    model.model.norm.register_forward_pre_hook(keep("final"), with_kwargs=True)
    kept = {}
    with open(prompts_path, encoding="utf-8") as file:
        prompts = json.load(file)
    for name, ids in prompts.items():
        with torch.no_grad():
            model.model(torch.tensor([ids]))
        kept.update({f"{name}/{boundary}": state.numpy() for boundary, state in states.items()})
    np.savez(out, **kept)


if __name__ == "__main__":
    main(*sys.argv[1:])
