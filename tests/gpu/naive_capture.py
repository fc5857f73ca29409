"""The obvious capture, to compare with: hidden + residual, ``.cpu()``, one ``torch.save`` a state and prompt.

A ``--forward-hooks`` factory. Requests whose id starts with ``naive-`` or ``hs-both-`` are taken, by every rank, into
``<folder>/rank<N>/<id>.<boundary or final>.<first row>.pt``.
"""

import os

import torch

_rows = []  # (request id, first row in the pass, rows, position) of the pass that is running


def layer(config):
    """The hook of layer k - 1, whose output is boundary k."""

    def hook(module, args, output):
        batch = args[2]
        if config["boundary"] == config["boundaries"][0]:
            _rows[:] = _wanted(batch)
        if _rows:
            _save(config, str(config["boundary"]), output[0] + output[1])

    return hook


def final(config):
    """The hook of the last norm, whose second result is the final state before it."""

    def hook(module, args, output):
        if _rows:
            _save(config, "final", output[1])
            _rows.clear()

    return hook


def _wanted(batch):
    if batch.forward_mode.name != "EXTEND":
        return []
    found, row = [], 0
    for rid, length, start in zip(batch.rids, batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu, strict=True):
        if rid.startswith(("naive-", "hs-both-")):
            found.append((rid, row, length, start))
        row += length
    return found


def _save(config, name, state):
    from sglang.srt.distributed import get_tensor_model_parallel_rank

    folder = f"{config['folder']}/rank{get_tensor_model_parallel_rank()}"
    os.makedirs(folder, exist_ok=True)
    state = state.cpu()
    for rid, row, length, start in _rows:
        torch.save(state[row : row + length].clone(), f"{folder}/{rid}.{name}.{start}.pt")
