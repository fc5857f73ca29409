"""Log-probabilities from a dump's final state: ``python -m hsops_hs_dump.lm_head``, a request on standard input.

Run on the host by ``hsops verify --live``, beside the server and not in it. It rounds where SGLang rounds (norm and
logits to the model's dtype), so that what is left over is a fault of the state. Request: ``{"dump", "final", "model",
"env", "float32"}``. Reply, for each final state that the dump has: ``{"final": {"logprobs", "best", "largest"}}``, of
tokens 1 to T-1; or ``{"skipped": why}``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from .head import Head, UnknownHeadError, head_of
from .weights import Tensor, files_of, folder_of, tensors_of

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
BLOCK_BYTES = 128 << 20  # of the matrix at once


def main() -> None:
    """One request, one line of JSON."""
    request = json.load(sys.stdin)
    torch.set_num_threads(max(1, min(8, (os.cpu_count() or 2) // 2)))  # the server beside it goes on
    try:
        reply = score(
            request["dump"],
            request["final"],
            folder_of(request["model"], request["env"]),
            full=bool(request["float32"]),
        )
    except (UnknownHeadError, OSError, ValueError, KeyError) as error:
        said = (
            str(error)
            if isinstance(error, UnknownHeadError | FileNotFoundError)
            else f"{type(error).__name__}: {error}"
        )
        reply = {"skipped": f"the model's head cannot be had: {said}"}
    sys.stdout.write(json.dumps(reply) + "\n")


def score(dump: str, final: str, folder: str, *, full: bool) -> dict[str, Any]:
    """The reply for one dump.

    Args:
        dump: the file.
        final: which final states it has: ``pre-norm``, ``post-norm`` or ``both``.
        folder: the model's.
        full: the server computes logits in float32 whatever the model's dtype.
    """
    head, norm, matrix = _find(folder)
    held = tensors_of(dump)
    ids, normed = _long(held["token_ids"]), {}
    if final in ("pre-norm", "both"):
        normed["final"] = _norm(_all(held["hidden_states"])[:, -1], _all(norm), head.epsilon)
    if final in ("post-norm", "both"):
        normed["final after the norm"] = _all(held["last_hidden_states"])
    return {slot: _logprobs(x[:-1], matrix, head, ids[1:], full=full) for slot, x in normed.items()}


def _find(folder: str) -> tuple[Head, Tensor, Tensor]:
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    files = files_of(folder)
    head = head_of(config, files)
    norm, matrix = (tensors_of(files[name])[name] for name in (head.norm, head.matrix))
    if odd := {t.dtype for t in (norm, matrix)} - set(DTYPES):
        raise UnknownHeadError(f"norm or lm_head is stored as {', '.join(sorted(odd))}")
    return head, norm, matrix


def _norm(states: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """[T, H] as the model's last norm makes it, in the states' dtype."""
    x = states.to(torch.float32)
    x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return (x * weight.to(torch.float32)).to(states.dtype)


def _logprobs(x: torch.Tensor, matrix: Tensor, head: Head, ids: torch.Tensor, *, full: bool) -> dict[str, Any]:
    """The matrix is gone through in blocks of tokens: of Kimi-K2.5's it has 2.3 GB."""
    count = min(matrix.shape[0], head.vocabulary or matrix.shape[0])
    step = max(1, BLOCK_BYTES // matrix.row_bytes)
    rows = len(ids)
    sums, picked = torch.full((rows,), -torch.inf), torch.full((rows,), torch.nan)
    top, best, largest = torch.full((rows,), -torch.inf), torch.zeros(rows, dtype=torch.int64), 0.0
    for first in range(0, count, step):
        logits = _block(x, matrix, first, min(step, count - first), head.cap, full=full)
        sums = torch.logaddexp(sums, logits.logsumexp(dim=-1))
        inside = (ids >= first) & (ids < first + logits.shape[1])
        picked[inside] = logits[inside].gather(1, (ids[inside] - first)[:, None])[:, 0]
        most, at = logits.max(dim=-1)
        best = torch.where(most > top, at + first, best)
        top = torch.maximum(top, most)
        largest = max(largest, float(logits.abs().max()))
    return {"logprobs": (picked - sums).tolist(), "best": best.tolist(), "largest": largest}


def _block(x: torch.Tensor, matrix: Tensor, first: int, count: int, cap: float | None, *, full: bool) -> torch.Tensor:
    weight = _rows(matrix, first, count)
    logits = x.to(torch.float32) @ weight.to(x.dtype).to(torch.float32).T
    if not full:
        logits = logits.to(x.dtype).to(torch.float32)
    return cap * torch.tanh(logits / cap) if cap else logits


def _all(tensor: Tensor) -> torch.Tensor:
    return _rows(tensor, 0, tensor.shape[0])


def _rows(tensor: Tensor, first: int, count: int) -> torch.Tensor:
    data = torch.frombuffer(tensor.rows(first, count), dtype=DTYPES[tensor.dtype])
    return data.reshape(count, *tensor.shape[1:])


def _long(tensor: Tensor) -> torch.Tensor:
    return torch.frombuffer(tensor.rows(0, tensor.shape[0]), dtype=torch.int64)


if __name__ == "__main__":
    main()
