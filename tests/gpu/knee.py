"""From which dump rate on capture costs: servers of little computation and a growing share of captured prompts.

With 1 writer and with 4; and with 4 where Python hands its lock over after 5 ms, as it does by itself, after 0.5 ms, as
capture asks for, and after 0.1 ms. Run through ``tests/gpu/run.sh knee``; writes ``knee.json`` into the folder given.
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

ROUNDS, PROMPTS = 4, 96
SHARES = (0.0, 0.25, 0.5, 1.0)
USUAL = 4  # writers
SERVERS = {"one-writer": (1, None), "four": (USUAL, None), "four-5ms": (USUAL, 0.005), "four-0.1ms": (USUAL, 0.0001)}


def main(out: Path) -> None:
    """All servers up, one after the other measured."""
    machine.prepare()
    servers = [_light(name, *how) for name, how in SERVERS.items()]
    machine.write_inventory(servers, BOUNDARIES)
    machine.hsops("deploy", "--yes")
    touch(16)
    figures: dict[str, Any] = {"sglang": machine.SGLANG, "bytes_per_token": ROW}
    with machine.running(servers) as ports:
        benches = [Bench(name, port, []) for name, port in ports.items()]
        _passes(benches)
    for bench in benches:
        figures[bench.name] = _told(bench)
    (out / "knee.json").write_text(json.dumps(figures, indent=1))
    machine.hsops("deploy", "--revert", "--yes")


def _light(name: str, writers: int, interval: float | None) -> machine.Server:
    config = deepseek(4, heads=16, width=512, dense=4096)
    args: dict[str, Any] = {"max-total-tokens": 147456, "mem-fraction-static": 0.4}
    if interval is not None:
        hook = {"name": "interval", "target_modules": ["model.norm"], "hook_factory": "switch_interval:every_pass"}
        args["forward-hooks"] = json.dumps([{**hook, "config": {"seconds": interval}}])
    return machine.Server(name, config, args=args, env={"SGLANG_HS_WRITERS": str(writers)})


def _passes(benches: list[Bench]) -> None:
    """All servers in turn, again and again; which share comes first changes."""
    asked = drive.prompts(PROMPTS, 2048, 2048, 5)
    for bench in benches:
        bench.measure("warm", asked[:32], lambda i: f"plain-warm{i}", kept=False)
        bench.measure("warm", asked[:32], lambda i: f"hs-warm{i}", kept=False)
    for number in range(ROUNDS):
        for share in SHARES if number % 2 else SHARES[::-1]:
            taken = {i for i in range(len(asked)) if int((i + 1) * share) > int(i * share)}
            for bench in benches:
                bench.measure(
                    f"{share:.2f}",
                    asked,
                    lambda i, t=taken, n=number, s=share: f"{'hs' if i in t else 'plain'}-k{n}.{s}.{i}",
                )


def _told(bench: Bench) -> dict[str, Any]:
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
