"""What capture costs on one GPU, and from which dump rate on. Run through ``tests/gpu/run.sh throughput``.

Three ways interleaved on a server that does 10 to 25 thousand tokens a second unpatched: not captured, captured, and
the obvious way (naive_capture.py); with prompts of 2,048 tokens, four of which fill a pass, and with prompts of 1,230
to 2,230, which are cut into chunks. Then the knee: servers of little computation, with 1, 2 and 4 writers, and a
growing share of captured prompts. Writes ``throughput.json`` into the folder given.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu import drive, machine
from tests.gpu.models import deepseek

BOUNDARIES = [1, 2, 3]
ROW = (len(BOUNDARIES) + 1) * 7168 * 2  # bytes of one token's states
NAIVE = machine.DUMPS / "naive"
ROUNDS, NAIVE_ROUNDS, KNEE_ROUNDS = 7, 2, 3
PREFIX = {"none": "plain", "capture": "hs", "naive": "naive"}
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
WRITERS = (1, 2, 4)


@dataclass
class Bench:
    """One server under measurement: where it listens, where its dumps go, what was measured."""

    name: str
    port: int
    passes: list[drive.Pass]

    @property
    def folder(self) -> Path:
        """Its dumps."""
        return machine.DUMPS / self.name

    def measure(self, mode: str, asked: list[list[int]], name: Callable[[int], str], *, kept: bool = True) -> None:
        """One pass; its files are removed afterwards."""
        done = drive.run(self.port, self.folder, mode, asked, name)
        print(
            f"{self.name} {mode}: {done.rate:.0f} tokens/s, {done.ok} ok, {done.failed} failed {done.reasons}",
            flush=True,
        )
        if kept:
            self.passes.append(done)
        for path in (*self.folder.glob("*.safetensors"), *NAIVE.glob("rank*/*")):
            path.unlink()

    def rates(self, mode: str) -> list[float]:
        """Tokens a second of every pass of a mode."""
        return [done.rate for done in self.passes if done.mode == mode]


def main(out: Path, *, quick: bool = False) -> None:
    """Everything, as one JSON file; ``quick``: only that it runs at all."""
    machine.prepare()
    figures: dict[str, Any] = {"raw": _raw(), "sglang": "0.5.12.post1", "bytes_per_token": ROW}
    deep = machine.Server(
        "deep", deepseek(16), args={"forward-hooks": json.dumps(naive_hooks(BOUNDARIES)), "mem-fraction-static": 0.7}
    )
    light = [_light(writers) for writers in WRITERS]
    machine.write_inventory([deep, *light], BOUNDARIES)
    machine.hsops("deploy", "--yes")
    _touch(4 if quick else 24)
    with machine.running([deep]) as ports:
        figures["cost"] = _cost(ports["deep"], quick=quick)
        _write(out, figures)
    if quick:
        return
    with machine.running(light) as ports:
        figures["knee"] = {name: _knee(Bench(name, port, [])) for name, port in ports.items()}
    _write(out, figures)
    machine.hsops("deploy", "--revert", "--yes")


def naive_hooks(boundaries: list[int]) -> list[dict[str, Any]]:
    """The value of ``--forward-hooks`` that installs naive_capture.py."""
    common = {"boundaries": boundaries, "folder": str(NAIVE)}
    layers = [
        {
            "name": f"naive-{k}",
            "target_modules": [f"model.layers.{k - 1}"],
            "hook_factory": "naive_capture:layer",
            "config": {**common, "boundary": k},
        }
        for k in boundaries
    ]
    last = {"name": "naive-final", "target_modules": ["model.norm"], "hook_factory": "naive_capture:final"}
    return [*layers, {**last, "config": common}]


def _cost(port: int, *, quick: bool) -> dict[str, Any]:
    bench = Bench("deep", port, [])
    for mode, prefix in PREFIX.items():
        bench.measure(mode, drive.prompts(16, 1230, 2230, 0), lambda i, p=prefix: f"{p}-warm{i}", kept=False)
    return {
        "prompts_of_2048": _compared(port, (2048, 2048), rounds=2 if quick else ROUNDS),
        "prompts_of_1230_to_2230": _compared(port, (1230, 2230), rounds=1 if quick else ROUNDS // 2 + 1),
        "same_as_naive": _same(bench),
        "counters": _counters(bench),
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


def _knee(bench: Bench) -> dict[str, Any]:
    asked = drive.prompts(128, 2048, 2048, 5)
    bench.measure("warm", asked[:32], lambda i: f"plain-warm{i}", kept=False)
    bench.measure("warm", asked[:32], lambda i: f"hs-warm{i}", kept=False)
    for number in range(KNEE_ROUNDS):
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
        "counters": _counters(bench),
    }


def _dump_rate(bench: Bench, mode: str) -> float:
    """GB/s of dumps, to the last file."""
    return median(done.captured * ROW / done.done_s / 1e9 for done in bench.passes if done.mode == mode)


def _light(writers: int) -> machine.Server:
    config = deepseek(4, heads=16, width=512, dense=4096)
    env = {"SGLANG_HS_WRITERS": str(writers)}
    return machine.Server(
        f"light-{writers}", config, args={"max-total-tokens": 147456, "mem-fraction-static": 0.4}, env=env
    )


def _counters(bench: Bench) -> list[Any]:
    """What the ranks count about themselves."""
    return [json.loads(path.read_text()) for path in sorted(bench.folder.glob("hello/*.stats"))]


def _raw() -> dict[str, Any]:
    script = Path(__file__).with_name("raw.py")
    done = subprocess.run([machine.PYTHON, script], capture_output=True, text=True, timeout=180, check=True)
    return dict(json.loads(done.stdout))


def _touch(gib: int) -> None:
    """Machines whose memory grows give the first bytes slowly: have them before anything is timed."""
    path, block = Path("/dev/shm/hsops-gpu-touch"), bytes(64 << 20)
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(gib * 16):
            file.write(block)
    path.unlink()
    print(f"touched {gib} GiB in {time.perf_counter() - began:.1f} s", flush=True)


def _write(out: Path, figures: dict[str, Any]) -> None:
    (out / "throughput.json").write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), quick=sys.argv[2:] == ["quick"])
