"""What capture costs on one GPU. Run through ``tests/gpu/run.sh cost``.

Three ways interleaved on a server that does 10 to 25 thousand tokens a second unpatched: not captured, captured, and
the obvious way (naive_capture.py); with prompts of 2,048 tokens, four of which fill a pass, and with prompts of 1,230
to 2,230, which are cut into chunks. Writes ``cost.json`` into the folder given.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu import drive, machine
from tests.gpu.bench import BOUNDARIES, NAIVE, ROW, Bench, naive_hooks, touch
from tests.gpu.models import deepseek

ROUNDS, NAIVE_ROUNDS = 7, 2
PREFIX = {"none": "plain", "capture": "hs", "naive": "naive"}


def main(out: Path, *, quick: bool = False) -> None:
    """Everything, as one JSON file; ``quick``: only that it runs at all."""
    machine.prepare()
    figures: dict[str, Any] = {"raw": _raw(), "sglang": machine.SGLANG, "bytes_per_token": ROW}
    hooks = {"forward-hooks": json.dumps(naive_hooks(BOUNDARIES))}
    deep = machine.Server("deep", deepseek(16), args={**hooks, "mem-fraction-static": 0.7})
    machine.write_inventory([deep], BOUNDARIES)
    machine.hsops("deploy", "--yes")
    touch(4 if quick else 24)
    with machine.running([deep]) as ports:
        figures["cost"] = _cost(ports["deep"], quick=quick)
    (out / "cost.json").write_text(json.dumps(figures, indent=1))
    machine.hsops("deploy", "--revert", "--yes")


def _cost(port: int, *, quick: bool) -> dict[str, Any]:
    bench = Bench("deep", port, [])
    for mode, prefix in PREFIX.items():
        bench.measure(mode, drive.prompts(16, 1230, 2230, 0), lambda i, p=prefix: f"{p}-warm{i}", kept=False)
    return {
        "prompts_of_2048": _compared(port, (2048, 2048), rounds=2 if quick else ROUNDS),
        "prompts_of_1230_to_2230": _compared(port, (1230, 2230), rounds=1 if quick else ROUNDS // 2 + 1),
        "same_as_naive": _same(bench),
        "counters": bench.counters,
    }


def _compared(port: int, lengths: tuple[int, int], *, rounds: int) -> dict[str, Any]:
    """The ways one after the other, again and again; which comes first changes."""
    bench = Bench("deep", port, [])
    for number in range(rounds):
        asked = drive.prompts(64, *lengths, seed=number)
        modes = [mode for mode in PREFIX if mode != "naive" or number < NAIVE_ROUNDS]
        for mode in modes[number % 2 :] + modes[: number % 2]:
            bench.measure(mode, asked, lambda i, m=mode, n=number: f"{PREFIX[m]}-{lengths[0]}-r{n}.{i}")
    plain, captured = bench.rates("none"), bench.rates("capture")
    return {
        "tokens_per_s": {mode: round(median(bench.rates(mode))) for mode in PREFIX},
        "of_plain": {mode: round(median(bench.rates(mode)) / median(plain), 4) for mode in PREFIX},
        "of_plain_by_round": [round(c / p, 4) for c, p in zip(captured, plain, strict=True)],
        "GB_per_s_captured": round(median(captured) * ROW / 1e9, 2),
        "passes": [done.told() for done in bench.passes],
    }


def _same(bench: Bench) -> dict[str, int]:
    """Prompts taken both ways in the same passes: states that are equal bit for bit, and all."""
    asked = drive.prompts(16, 1230, 2230, 99)
    drive.run(bench.port, bench.folder, "both", asked, lambda i: f"hs-both-{i}")
    script = Path(__file__).with_name("same_bits.py")
    done = subprocess.run(
        [machine.PYTHON, script, bench.folder, NAIVE / "rank0", ",".join(map(str, BOUNDARIES))],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    shutil.rmtree(NAIVE)
    return dict(json.loads(done.stdout))


def _raw() -> dict[str, Any]:
    script = Path(__file__).with_name("raw.py")
    done = subprocess.run([machine.PYTHON, script], capture_output=True, text=True, timeout=180, check=True)
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    main(Path(sys.argv[1]), quick=sys.argv[2:] == ["quick"])
