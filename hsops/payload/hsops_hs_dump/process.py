"""What this process is to SGLang. Only to be had once the model is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Process:
    """One rank.

    Args:
        rank: tensor-parallel rank, from 0.
        tp_size: how many ranks.
        arguments: the server's arguments, resolved.
    """

    rank: int
    tp_size: int
    arguments: dict[str, Any]


def this_process() -> Process:
    """Asks SGLang.

    Raises:
        LookupError: no known way finds the server's arguments.
    """
    from sglang.srt.distributed.parallel_state import (
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )

    return Process(
        int(get_tensor_model_parallel_rank()), int(get_tensor_model_parallel_world_size()), _server_arguments()
    )


def _server_arguments() -> dict[str, Any]:
    try:
        from sglang.srt.runtime_context import get_context

        return dict(get_context().resolved_server_args_dict())  # from 0.5.2x on the raw fields are only the input
    except (ImportError, AttributeError):
        pass
    try:
        from sglang.srt.server_args import get_global_server_args

        return dict(vars(get_global_server_args()))
    except (ImportError, ValueError, RuntimeError) as error:
        raise LookupError(f"the server's arguments are not to be had: {error}") from None
