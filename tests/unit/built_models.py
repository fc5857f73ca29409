"""Models as a server builds them, small: their classes have the shapes that the payload reads in this file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Module:
    """What of torch's Module is asked for."""

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Itself and what is below it."""
        yield prefix, self
        for name, part in vars(self).items():
            for place, module in enumerate(part) if isinstance(part, list) else [("", part)]:
                if isinstance(module, Module):
                    yield from module.named_modules(".".join(filter(None, (prefix, name, str(place)))))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls forward, and then the hooks, as torch does."""
        result = self.forward(*args, **kwargs)  # type: ignore[attr-defined]
        for hook in getattr(self, "hooks", []):
            hook(self, args, result)
        return result


class Norm(Module):
    """Adds; 100 times that is normal."""

    def __init__(self) -> None:
        self.hooks: list[Any] = []

    def register_forward_hook(self, hook: Any) -> Any:
        """Called with (module, args, result) after each call."""
        self.hooks.append(hook)
        return type("Handle", (), {"remove": lambda _: self.hooks.remove(hook)})()

    def forward(self, hidden: int, residual: int | None = None) -> Any:
        """With a residual: (normal, sum)."""
        return hidden * 100 if residual is None else ((hidden + residual) * 100, hidden + residual)


class Layer(Module):
    """Adds its number."""

    def __init__(self, number: int) -> None:
        self.number, self.input_layernorm = number, Norm()

    def forward(self, positions: Any, hidden_states: Any, forward_batch: Any, residual: Any) -> Any:
        """(what it adds, what came in)."""
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        return self.number, residual


class Trunk(Module):
    """Three layers."""

    def __init__(self) -> None:
        self.layers, self.norm = [Layer(10), Layer(20), Layer(30)], Norm()
        self.start_layer, self.end_layer = 0, 3
        self.layers_to_capture: list[int] = []

    def forward(self, input_ids: Any, positions: Any, forward_batch: Any) -> Any:
        """The normal state."""
        hidden_states, residual = input_ids, None
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states + residual)
            hidden_states, residual = self.layers[i](positions, hidden_states, forward_batch, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states if not aux_hidden_states else (hidden_states, aux_hidden_states)


class Tower(Module):
    """A vision tower: layers and a norm, but no batch."""

    def __init__(self) -> None:
        self.layers, self.norm = [Layer(1)], Norm()

    def forward(self, pixels: Any) -> Any:
        """Nothing."""


class ForCausalLM(Module):
    """What the registry knows."""

    def __init__(self) -> None:
        self.model = Trunk()

    def forward(self, input_ids: Any, forward_batch: Any) -> Any:
        """The trunk's state."""
        return self.model(input_ids, None, forward_batch)


class ForConditionalGeneration(Module):
    """A wrapper with a tower beside the language model."""

    def __init__(self) -> None:
        self.vision_tower, self.language_model = Tower(), ForCausalLM()


class Fallback(Module):
    """SGLang's way to serve a model class of transformers: no forward takes the batch."""

    def __init__(self) -> None:
        self.model = Tower()


class ForCausalLMNextN(ForCausalLM):
    """A draft model."""


class Twins(Module):
    """Two trunks."""

    def __init__(self) -> None:
        self.thinker, self.talker = Trunk(), Trunk()


class Broken(Module):
    """Cannot be built."""

    def __init__(self) -> None:
        raise ValueError("no memory")
