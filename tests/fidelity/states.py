"""What both references keep of a model of transformers'. Imported by scripts that the lab's interpreter runs."""

from collections.abc import Callable
from typing import Any

import torch


def follow(trunk: Any, states: dict[str, torch.Tensor]) -> None:
    """Keep what goes into every layer and into the last norm, and what comes out of that.

    Args:
        trunk: has ``layers`` and a ``norm``.
        states: gets ``<k>``, the input of layer k; ``final``, that of the norm; ``post``, its output: [B, T, H] each.
    """

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            states[name] = (args[0] if args else kwargs["hidden_states"]).clone()

        return hook

    def keep_normed(_module: Any, _args: Any, output: torch.Tensor) -> None:
        states["post"] = output.clone()

    for k, layer in enumerate(trunk.layers):
        layer.register_forward_pre_hook(keep(str(k)), with_kwargs=True)
    trunk.norm.register_forward_pre_hook(keep("final"), with_kwargs=True)
    trunk.norm.register_forward_hook(keep_normed)
