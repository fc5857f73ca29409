"""hsops extract against a bare client that sends the same prompts: a real SGLang that captures, in turn, medians.

    python -m benchmarks.extract [--rounds 5] [--prompts 400] [--tokens 400] [--concurrency 16]

Writes docs/reference/extract-speed.md and .json. Absolute values are of a tiny model on this machine's cores, which
client and server share; only the ratio means something, and a real model hides the client better.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.e2e.practice import Practice, practice

ROOT = Path(__file__).parent.parent
DATA, PAGE = ROOT / "docs/reference/extract-speed.json", ROOT / "docs/reference/extract-speed.md"
BARE, LEAST = "bare asyncio client", "asyncio streams alone"
OURS, WHOLE = "hsops extract, while it drives", "hsops extract, the whole command"
HOW = {BARE: "httpx", LEAST: "streams"}
GOAL = 0.98
LEAST_TOLD = (
    "Streams alone are the least that there can be: no HTTP library, an answer's status and length are all that is",
    "looked at. Where they are the faster one, the difference is what httpx costs, on cores that the server needs.",
)


@dataclass(frozen=True)
class Row:
    """A way of sending: tokens a second, median and bounds; and to the bare client's, the median over the rounds."""

    tokens_s: float
    least: float
    most: float
    ratio: float


def main(words: Sequence[str] = ()) -> None:
    """Measure, print, and write the page. ``words``: options."""
    parser = argparse.ArgumentParser()
    for name, default in (("rounds", 5), ("prompts", 400), ("tokens", 400), ("concurrency", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="hsops-bench-") as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        with practice(folder, sglang="0.5.9", tp=1) as lab:
            lab.do("deploy", "--yes")
            lab.do("launch", "--wait-healthy")
            rates = measure(lab, folder, asked)
            lab.do("stop")
    data = {
        "time": dt.datetime.now(dt.timezone.utc).isoformat(timespec="minutes"),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "sglang": "0.5.9",
        **{key: getattr(asked, key) for key in ("rounds", "prompts", "tokens", "concurrency")},
        "rows": {way: asdict(row(rates, way)) for way in rates},
    }
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(page(data))
    print(page(data))


def measure(lab: Practice, folder: Path, asked: argparse.Namespace) -> dict[str, list[float]]:
    """Tokens a second, by way and round; one round before does not count."""
    (run,) = lab.do("status")["runs"]
    rates: dict[str, list[float]] = {BARE: [], LEAST: [], OURS: [], WHOLE: []}
    total = asked.prompts * asked.tokens
    for number in range(asked.rounds + 1):
        for way in (BARE, LEAST, OURS)[:: 1 if number % 2 else -1]:  # neither is always the last
            prompts = make(folder, f"{way[:4]}{number}", asked.prompts, asked.tokens)
            if way in HOW:
                took = {way: bare(run["port"], prompts, asked.concurrency, HOW[way])}
            else:
                took = ours(lab, prompts, asked.concurrency)
            for name, seconds in took.items():
                if number:
                    rates[name].append(total / seconds)
                print(f"round {number}: {name}: {total / seconds:,.0f} tokens/s", flush=True)
            for dump in lab.dumps.glob("*.safetensors"):  # room for the next; the manifest stays
                dump.unlink()
    return rates


def bare(port: int, prompts: Path, concurrency: int, how: str) -> float:
    """Seconds."""
    argv = [sys.executable, "-m", "benchmarks._extract_bare", str(port), str(prompts), str(concurrency), how]
    done = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout)


def ours(lab: Practice, prompts: Path, concurrency: int) -> dict[str, float]:
    """Seconds of the two ways to look at it."""
    began = time.monotonic()
    data = lab.do("extract", str(prompts), "--concurrency", str(concurrency), timeout=600.0)
    assert data["failures"] == []
    return {OURS: data["driving_s"], WHOLE: time.monotonic() - began}


def make(folder: Path, name: str, count: int, tokens: int) -> Path:
    """A file of random prompts."""
    dice, path = random.Random(name), folder / f"{name.replace(' ', '_')}.jsonl"
    with path.open("w") as file:
        for i in range(count):
            ids = [dice.randrange(1, 250) for _ in range(tokens)]
            file.write(json.dumps({"id": f"{path.stem}-{i}", "input_ids": ids}) + "\n")
    return path


def row(rates: Mapping[str, Sequence[float]], way: str) -> Row:
    """What the page shows of a way."""
    ratios = [mine / its for mine, its in zip(rates[way], rates[BARE], strict=True)]
    least, most = min(rates[way]), max(rates[way])
    return Row(round(statistics.median(rates[way])), round(least), round(most), round(statistics.median(ratios), 3))


def page(data: Mapping[str, Any]) -> str:
    """The page."""
    ratio, least = data["rows"][OURS]["ratio"], data["rows"].get(LEAST)
    shape = f"{data['rounds']} rounds of {data['prompts']} prompts of {data['tokens']} tokens"
    lines = [
        "# What extract costs beside a bare client",
        "",
        "Written by `python -m benchmarks.extract`; do not edit. The same prompts, new ones each time, to a server",
        f"that captures: SGLang {data['sglang']}, a tiny model, on the cores that the client runs on too. In turn,",
        f"medians of {shape}, {data['concurrency']} at once; the ratio is the",
        "median of the rounds'. The bare client is httpx' asynchronous one on the server's own port: it waits for",
        "HTTP 200, and for no dump. `hsops extract` goes through the SSH connection, waits for each dump's line in the",
        "manifest, holds its token ids against what was sent, and keeps a journal. It has at most twice the tokens",
        "under way that the server holds; the bare client leaves that to the queue of the server.",
        *(LEAST_TOLD if least else ()),
        "",
        f"{data['cores']} cores, load {data['load']} at the end, {data['time']}.",
        "",
        "| | tokens/s | least, most | to the bare client |",
        "|---|---|---|---|",
    ]
    for way, held in data["rows"].items():
        bounds = f"{held['least']:,}, {held['most']:,}"
        lines.append(f"| {way} | {held['tokens_s']:,} | {bounds} | {held['ratio']:.3f} |")
    reached = "reached" if ratio >= GOAL else "not reached"
    lines += [
        "",
        f"Goal while it drives: {GOAL}, {reached}. The whole command has a login, an agent and a health probe besides.",
    ]
    if least:
        beside = data["rows"][OURS]["tokens_s"] / least["tokens_s"]
        lines[-1] += f"\nBeside streams alone it is {beside:.3f} of the tokens, median by median."
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
