"""Dumps against the files of naive_capture.py of the same passes, bit for bit. Run by SGLang's interpreter (torch)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file


def main(dumps: str, naive: str, boundaries: str) -> None:
    """Print how many states there are, how many are equal, and the largest relative difference."""
    names = [*boundaries.split(","), "final"]
    equal, different, worst = 0, 0, dict.fromkeys(names, 0.0)
    for path in sorted(Path(dumps).glob("both-*.safetensors")):
        states = load_file(path)["hidden_states"]
        for slot, name in enumerate(names):
            parts = sorted(Path(naive).glob(f"hs-{path.stem}.{name}.*.pt"), key=lambda p: int(p.name.split(".")[-2]))
            other = torch.cat([torch.load(part) for part in parts])
            mine = states[:, slot]
            if torch.equal(mine.view(torch.int16), other.view(torch.int16)):
                equal += 1
            else:
                different += 1
                difference = (mine.float() - other.float()).norm() / mine.float().norm()
                worst[name] = max(worst[name], float(difference))
    print(json.dumps({"equal": equal, "different": different, "worst": worst}))


if __name__ == "__main__":
    main(*sys.argv[1:])
