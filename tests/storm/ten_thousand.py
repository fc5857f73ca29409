"""``make ten-thousand``: the main job with a host that is too small, and everything dying meanwhile.

python -m tests.storm.ten_thousand [--samples 10000] [--mib 256] [--servers 2] [--clients 5] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hsops.core.dumps import MANIFEST, latest, parse_sample
from hsops.core.units import size
from hsops.fetch.ledger import LEDGER
from tests.e2e.practice import MINUTES, Practice, practice
from tests.fetching import ROOT
from tests.fidelity import prompts
from tests.fidelity.tally import tally
from tests.fidelity.truth import WRONG_ROW, of_the_tiny_model

FOLDER = Path(__file__).parents[2] / "docs/reference"
DATA, PAGE = FOLDER / "ten-thousand.json", FOLDER / "ten-thousand.md"
BOUNDARIES, SERIES, TOKENS, AT_ONCE = (1, 3, 5), "ten", (16, 64), 32
HELD = 200  # dumps that are held against the reference
RUNS = 60  # of the client, at most
PATIENCE_S = 15 * MINUTES  # without a sample more

PLAYBOOK = """\
name: ten-thousand
vars: {prompts: "", to: ""}
steps:
  - deploy
  - launch
  - extract: { prompts: "{prompts}", drain: "{to}", concurrency: 32, relaunch: 3 }
  - verify: { dir: "{to}", prompts: "{prompts}" }
"""

HEAD = """\
# Ten thousand samples, and everything dies

Written by `make ten-thousand`; do not edit. On the lab, a real SGLang at TP 2: one playbook (deploy, launch, `extract`
with `drain` and `relaunch`, verify) brings dumps of random prompts here through a RAM disk that cannot hold them. At
random moments a rank of the server is killed (SIGKILL), or the client; after the client the same line is typed again,
until it says that all is done. Then the manifests are counted, `hsops verify` reads every dump, and some, chosen at
random, are held against Hugging Face transformers' own model with the same weights, row by row.
"""


@dataclass(frozen=True, slots=True)
class Harm:
    """What happens once the host's manifest names ``at`` samples: ``server`` or ``client`` is killed."""

    at: int
    what: str
    delay: float


@dataclass
class Seen:
    """What was seen.

    Args:
        exits: of the clients, by code.
        killed: what was killed, at how many samples.
        errors: what clients that failed by themselves said.
        said: the last lines of the one that was the last.
        least_free: bytes of the RAM disk.
    """

    exits: Counter[str] = field(default_factory=Counter)
    killed: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    least_free: int = 1 << 62


def main(words: list[str]) -> int:
    """Run, print, write the page; 1 when anything was wrong."""
    parser = argparse.ArgumentParser()
    for name, default in (("samples", 10_000), ("mib", 256), ("servers", 2), ("clients", 5), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sglang", default="0.5.9")
    asked = parser.parse_args(words)
    dice = random.Random(asked.seed)
    wanted = {f"p{i}": prompts.tokens(dice, dice.randint(*TOKENS)) for i in range(asked.samples)}
    with tempfile.TemporaryDirectory(prefix="hsops-ten-") as name:
        folder = Path(name)
        with practice(folder, sglang=asked.sglang, tp=2) as lab, ram_disk(lab.dumps.parent, asked.mib << 20):
            data = play(lab, folder, wanted, harms(asked, dice))
        data["reference"] = compare(folder, wanted, dice)
    data |= {"disk": asked.mib << 20, "sglang": asked.sglang, "seed": asked.seed, "load": round(os.getloadavg()[0], 1)}
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(page(data))
    print(page(data))
    return 1 if wrong(data) else 0


def harms(asked: argparse.Namespace, dice: random.Random) -> list[Harm]:
    """When what is killed: anywhere but at the very end, in order."""
    kinds = ["server"] * asked.servers + ["client"] * asked.clients
    last = max(2, int(asked.samples * 0.95))
    found = [Harm(dice.randrange(1, last), kind, dice.uniform(0, 3)) for kind in kinds]
    return sorted(found, key=lambda harm: harm.at)


@contextmanager
def ram_disk(path: Path, bytes_: int) -> Iterator[None]:
    """A file system of so many bytes. Needs root."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={bytes_}", "hsops-ten", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=False)


def play(lab: Practice, folder: Path, wanted: prompts.Prompts, due: list[Harm]) -> dict[str, Any]:
    """All runs of the client; the server is stopped afterwards."""
    args = {"sleep-on-idle": True, "max-running-requests": AT_ONCE, "max-total-tokens": AT_ONCE * 128}
    lab.change("servers", "tiny", args=args)
    lab.change("patches", "hs-dump", boundaries=list(BOUNDARIES))
    (folder / "playbook.yaml").write_text(PLAYBOOK)
    file, to, seen = prompts.write(folder / "prompts.jsonl", wanted, SERIES), folder / "to", Seen()
    began, ended = time.monotonic(), threading.Event()
    watcher = threading.Thread(target=watch, args=(lab, seen, ended), daemon=True)
    watcher.start()
    due = list(due)
    for _ in range(RUNS):
        code = one_run(lab, folder, due, seen)
        if code == 0:
            break
    took = time.monotonic() - began
    ended.set()
    watcher.join(10)
    verified = lab.run("--json", "verify", str(to), "--prompts", str(file), timeout=10 * MINUTES)
    stopped = lab.run("stop")
    envelope = json.loads(verified.stdout.splitlines()[-1])
    return count(lab, to, seen) | {
        "samples": len(wanted),
        "seconds": round(took, 1),
        "not_killed": [f"{harm.what} at {harm.at}" for harm in due],
        "verify": {
            "exit": verified.returncode,
            "faults": len(envelope["errors"]),
            "compared": envelope["data"]["compared"],
        },
        "stop": stopped.returncode,
    }


def one_run(lab: Practice, folder: Path, due: list[Harm], seen: Seen) -> int:
    """The client until it ends or is killed; returns its exit code."""
    words = ["run", str(folder / "playbook.yaml"), "--yes", "--set", f"prompts={folder / 'prompts.jsonl'}"]
    command = [sys.executable, "-m", "hsops", "-i", str(lab.inventory), *words, "--set", f"to={folder / 'to'}"]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            attend(process, lab, folder, due, seen)
        finally:
            process.kill()  # on Ctrl-C, too
    code = process.wait()
    seen.exits[str(code)] += 1
    seen.said = tail(folder)
    if code > 0:
        seen.errors += seen.said[-3:]
    print(f"client: exit {code} at {named(lab):,} samples", *seen.said, sep="\n  ", flush=True)
    return code


def attend(process: subprocess.Popen[bytes], lab: Practice, folder: Path, due: list[Harm], seen: Seen) -> None:
    """Until it has ended: do what is due."""
    moved, before = time.monotonic(), -1
    while process.poll() is None:
        lines = named(lab)
        moved, before = (time.monotonic(), lines) if lines != before else (moved, before)
        if due and lines >= due[0].at:
            harm = due.pop(0)
            time.sleep(harm.delay)
            seen.killed.append(f"{strike(harm, lab, process)} at {named(lab):,}")
            print(seen.killed[-1], flush=True)
        if time.monotonic() - moved > PATIENCE_S:
            raise SystemExit(f"no sample more in {PATIENCE_S:.0f} s: {tail(folder)}")
        time.sleep(0.02)


def strike(harm: Harm, lab: Practice, client: subprocess.Popen[bytes]) -> str:
    """Kill it; what was killed. A server that is not there at that moment is waited for."""
    if harm.what == "client":
        client.kill()
        return "client"
    deadline = time.monotonic() + 5 * MINUTES
    while time.monotonic() < deadline and client.poll() is None:
        for rank in ranks(lab):
            with suppress(psutil.NoSuchProcess):
                rank.kill()
                return "a rank of the server"
        time.sleep(0.05)
    raise SystemExit("there was no rank to kill while the client ran")


def ranks(lab: Practice) -> list[psutil.Process]:
    """Of the server that runs; in any order. Their titles have taken the place of their environment."""
    pids = [int(run["pid"]) for run in lab.do("status")["runs"] if run["phase"] == "running"]
    found = []
    for pid in pids:
        with suppress(psutil.Error):
            for process in psutil.Process(pid).children(recursive=True):
                with suppress(psutil.Error):
                    found += [process] if "scheduler_TP" in " ".join(process.cmdline()) else []
    return found


def named(lab: Practice) -> int:
    """Lines of the host's manifest."""
    with suppress(FileNotFoundError):
        return (lab.dumps / MANIFEST).read_bytes().count(b"\n")
    return 0


def watch(lab: Practice, seen: Seen, ended: threading.Event) -> None:
    """How full the RAM disk becomes."""
    while not ended.wait(0.02):
        disk = os.statvfs(lab.dumps.parent)
        seen.least_free = min(seen.least_free, disk.f_bavail * disk.f_frsize)


def tail(folder: Path) -> list[str]:
    """The last lines that the client said."""
    return (folder / "said").read_text(errors="replace").replace(f"{folder}/", "").splitlines()[-8:]


def count(lab: Practice, to: Path, seen: Seen) -> dict[str, Any]:
    """Both manifests and both folders."""
    there = [parse_sample(line) for line in (lab.dumps / MANIFEST).read_text().splitlines()]
    here = [parse_sample(line) for line in (to / MANIFEST).read_text().splitlines()]
    ledger = [json.loads(line) for line in (to / LEDGER).read_text().splitlines()]
    written = Counter(sample.id for sample in there if sample.ok)
    return {
        "dumps": len(list(to.glob("*.safetensors"))),
        "bytes": sum(path.stat().st_size for path in to.glob("*.safetensors")),
        "tokens": sum(sample.tokens for sample in latest(here).values()),
        "failed": sum(not sample.ok for sample in latest(there).values()),
        "twice": sum(times > 1 for times in written.values()),
        "twice_here": sum(times > 1 for times in Counter(sample.id for sample in here).values()),
        "evicted": len({line["name"] for line in ledger if line["state"] == "evicted"}),
        "left": len(list(lab.dumps.glob("*.safetensors"))),
        "parts": len(list(to.glob("*.part"))),
        "least_free": seen.least_free,
        "exits": dict(seen.exits),
        "killed": seen.killed,
        "errors": seen.errors,
        "said": seen.said,
    }


def compare(folder: Path, wanted: prompts.Prompts, dice: random.Random) -> dict[str, Any]:
    """Some of the dumps beside the reference."""
    names = dice.sample(sorted(wanted), min(HELD, len(wanted)))
    truth = of_the_tiny_model({name: wanted[name] for name in names}, folder)
    held = folder / "held"
    held.mkdir()
    for name in names:
        with suppress(FileNotFoundError):
            os.link(folder / "to" / f"{SERIES}.{name}.safetensors", held / f"{SERIES}.{name}.safetensors")
    found = tally(held, truth, BOUNDARIES)
    return {
        "samples": found.samples,
        "rows": found.rows,
        "wrong": sum(found.wrong.values()),
        "ties": len(found.ties),
        "row_error": max(found.row_errors.values()),
    }


def wrong(data: dict[str, Any]) -> list[str]:
    """What is not as promised."""
    all_ = data["samples"]
    told = {
        "dumps": data["dumps"] != all_,
        "evicted": data["evicted"] != all_,
        "failed": data["failed"] > 0,
        "left": data["left"] > 0,
        "twice": data["twice_here"] > 0,
        "parts": data["parts"] > 0,
        "kills": bool(data["not_killed"]),
        "verify": data["verify"]["exit"] != 0 or data["verify"]["compared"] != all_,
        "reference": data["reference"]["samples"] != min(HELD, all_) or data["reference"]["wrong"] > 0,
        "end": "0" not in data["exits"],
    }
    return [what for what, bad in told.items() if bad]


def page(data: dict[str, Any]) -> str:
    """The page."""
    seen, held = data["verify"], data["reference"]
    rows = [
        ("samples asked for", f"{data['samples']:,}"),
        ("dumps here", f"{data['dumps']:,}, {data['tokens']:,} tokens, {size(data['bytes'])}"),
        ("RAM disk of the host", f"{size(data['disk'])}; least that was free: {size(data['least_free'])}"),
        ("samples that failed", data["failed"]),
        ("dumps of one id twice here; written twice on the host", f"{data['twice_here']}; {data['twice']}"),
        ("removed on the host, by the ledger; left there", f"{data['evicted']:,}; {data['left']}"),
        ("`hsops verify`", f"exit {seen['exit']}, {seen['faults']} faults, {seen['compared']:,} compared with prompts"),
        (
            f"held against the reference (a row is wrong beyond {WRONG_ROW:.0e})",
            f"{held['samples']} dumps, {held['rows']:,} rows: {held['wrong']} wrong, the largest error of a row "
            f"{held['row_error']:.1e}; {held['ties']} dumps with a tie of experts",
        ),
        ("killed", "; ".join(data["killed"]) or "nothing"),
        ("exits of the client", ", ".join(f"{code}: {times}" for code, times in sorted(data["exits"].items()))),
        ("time, load of the machine", f"{data['seconds']:,.0f} s, {data['load']}"),
        ("SGLang", data["sglang"]),
        ("not as promised", ", ".join(wrong(data)) or "nothing"),
    ]  # fmt: skip
    said = ["The last line of the last client:", "", "```", *data["said"][-1:], "```", ""]
    return "\n".join([HEAD, "| | |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows), "", *said])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
