"""From which dump rate on capture costs: servers of little computation, with 1, 2 and 4 writers, and a growing share of
captured prompts. Run through ``tests/gpu/run.sh knee``; writes ``knee.json`` into the folder given.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu import drive, machine
from tests.gpu.bench import BOUNDARIES, ROW, Bench, touch
from tests.gpu.models import deepseek

ROUNDS, PROMPTS = 2, 96
SHARES = (0.0, 0.25, 0.5, 1.0)
WRITERS = (1, 2, 4)


def main(out: Path) -> None:
    """All servers up, one after the other measured."""
    machine.prepare()
    servers = [_light(writers) for writers in WRITERS]
    machine.write_inventory(servers, BOUNDARIES)
    machine.hsops("deploy", "--yes")
    touch(16)
    figures: dict[str, Any] = {"sglang": machine.SGLANG, "bytes_per_token": ROW}
    with machine.running(servers) as ports:
        for name, port in ports.items():
            figures[name] = _knee(Bench(name, port, []))
            (out / "knee.json").write_text(json.dumps(figures, indent=1))
    machine.hsops("deploy", "--revert", "--yes")


def _light(writers: int) -> machine.Server:
    config = deepseek(4, heads=16, width=512, dense=4096)
    env = {"SGLANG_HS_WRITERS": str(writers)}
    return machine.Server(
        f"light-{writers}", config, args={"max-total-tokens": 147456, "mem-fraction-static": 0.4}, env=env
    )


def _knee(bench: Bench) -> dict[str, Any]:
    asked = drive.prompts(PROMPTS, 2048, 2048, 5)
    bench.measure("warm", asked[:32], lambda i: f"plain-warm{i}", kept=False)
    bench.measure("warm", asked[:32], lambda i: f"hs-warm{i}", kept=False)
    for number in range(ROUNDS):
        for share in SHARES if number % 2 else SHARES[::-1]:
            taken = {i for i in range(len(asked)) if int((i + 1) * share) > int(i * share)}
            bench.measure(
                f"{share:.2f}",
                asked,
                lambda i, t=taken, n=number, s=share: f"{'hs' if i in t else 'plain'}-k{n}.{s}.{i}",
            )
    plain = median(bench.rates("0.00"))
    return {
        "shares": {
            f"{share:.2f}": {
                "tokens_per_s": round(median(bench.rates(f"{share:.2f}"))),
                "of_plain": round(median(bench.rates(f"{share:.2f}")) / plain, 4),
                "GB_per_s": round(_dump_rate(bench, f"{share:.2f}"), 2),
            }
            for share in SHARES
        },
        "failed": sum(done.failed for done in bench.passes),
        "reasons": sorted({reason for done in bench.passes for reason in done.reasons}),
        "passes": [done.told() for done in bench.passes],
        "counters": bench.counters,
    }


def _dump_rate(bench: Bench, mode: str) -> float:
    """GB/s of dumps, to the last file."""
    return median(done.captured * ROW / done.done_s / 1e9 for done in bench.passes if done.mode == mode)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
