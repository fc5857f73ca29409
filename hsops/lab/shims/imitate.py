"""What only a GPU does to hidden states, imitated on the CPU: set HSOPS_LAB_IMITATE for the server.

Both change when a tensor holds what, and no number that the model computes: its answers stay the same. A capture that
keeps a reference instead of a copy, or adds up what is not reduced yet, is wrong under them and right without.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from .hooks import Patch

VARIABLE = "HSOPS_LAB_IMITATE"  # names, separated by commas
NORMS = "sglang.srt.layers.layernorm"
COMMUNICATOR = "sglang.srt.layers.communicator"
ADD_NORM = "sglang.srt.layers.layer_boundary.residual.add_norm"  # from 0.5.21 on
SERVER_ARGS = "sglang.srt.server_args"
FUSED_ROWS = 2048  # the fused kernel takes passes up to this many rows
ASKED = ("apply_flashinfer_allreduce_fusion", "flashinfer_ar_fusion_applies")  # from 0.5.7 on; from 0.5.22 or so


def patches(names: str) -> Iterator[tuple[str, Patch]]:
    """(module, what to do after its import) for the value of ``VARIABLE``."""
    for name in filter(None, (part.strip() for part in names.split(","))):
        yield from IMITATIONS.get(name, ((SERVER_ARGS, _unknown(name)),))


def norms_in_place(module: ModuleType) -> None:
    """The fused kernel for add and norm writes the sum over the residual, and the normed values over its input."""
    compute = module.RMSNorm.forward_native

    def forward_native(norm: Any, x: Any, residual: Any = None, *args: Any, **kwargs: Any) -> Any:
        made = compute(norm, x, residual, *args, **kwargs)
        if residual is None or not isinstance(made, tuple):
            return made
        return x.copy_(made[0]), residual.copy_(made[1])

    module.RMSNorm.forward_native = forward_native


def reduce_in_norm(module: ModuleType) -> None:
    """One kernel for all-reduce, add and norm: it leaves its inputs alone and returns two new tensors."""

    def forward_with_allreduce_fusion(norm: Any, x: Any, residual: Any = None, *_args: Any, **_kwargs: Any) -> Any:
        from sglang.srt.distributed import tensor_model_parallel_all_reduce

        return norm.forward(tensor_model_parallel_all_reduce(x.clone()), residual.clone())

    module.RMSNorm.forward_with_allreduce_fusion = forward_with_allreduce_fusion


def leave_reduce_to_the_next(module: ModuleType) -> None:
    """SGLang's own decision to fuse, made as on one Hopper or Blackwell node: but for the last layer, every time."""
    for name in ASKED:
        if name in vars(module):
            module.__dict__[name] = lambda rows: 0 < rows <= FUSED_ROWS
            return
    if communicator := vars(module).get("LayerCommunicator"):  # up to 0.5.6 all of it is in this method

        def should_fuse(self: Any, batch: Any) -> bool:
            rows = batch.input_ids.shape[0]
            return bool(0 < rows <= FUSED_ROWS and not self.is_last_layer and self._context.tp_size > 1)

        communicator.should_fuse_mlp_allreduce_with_next_layer = should_fuse


def _unknown(name: str) -> Patch:
    def refuse(_module: ModuleType) -> None:
        raise ValueError(f"{VARIABLE}: there is no imitation {name!r}; there are: {', '.join(IMITATIONS)}")

    return refuse


IMITATIONS: dict[str, tuple[tuple[str, Patch], ...]] = {
    "in-place-norms": ((NORMS, norms_in_place),),
    "deferred-allreduce": (
        (NORMS, reduce_in_norm),
        (COMMUNICATOR, leave_reduce_to_the_next),
        (ADD_NORM, leave_reduce_to_the_next),
    ),
}
