"""The whole story on one GPU through hsops' own command line, step by step. Run through ``tests/gpu/run.sh story``.

doctor, deploy, launch --wait-healthy with CUDA graphs for decoding, verify --live, extract and fetch one after the
other (who is faster?), extract with fetch --follow --evict beside it through a RAM disk that does not hold it all,
verify, prefill with capture and without, deploy --revert, stop. Writes ``story.json``, ``smi.txt`` and the server's log
into the folder given; a step that fails costs itself only.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu import bench, drain, drive, machine, reach, rehearsal, steps
from tests.gpu.models import deepseek

NAME = "deep"
SECONDS = 470.0
GRAPHS = {"disable-cuda-graph": False, "cuda-graph-max-bs": 16}


@dataclass(frozen=True)
class Size:
    """How much of it all.

    Args:
        config: the model's; boundaries: captured ones, beside the final state.
        samples: dumps; alone: how many of them before the fetch begins. low, high: tokens of a prompt.
        share: bytes of the RAM disk for dumps. touch: GiB of memory to be had before anything is timed.
        rounds: of prefill with and without capture; passes: prompts of a round and their tokens.
    """

    config: dict[str, Any]
    boundaries: tuple[int, ...]
    samples: int
    alone: int
    low: int
    high: int
    share: int
    touch: int
    rounds: int
    passes: tuple[int, int]


def size() -> Size:
    """24 layers of hidden size 7,168, 57,344 bytes a token; 2,000 prompts of 320 tokens are 37 GB."""
    if machine.LAB:
        return Size(rehearsal.config(), (1, 3, 5), 200, 40, 8, 60, 4 << 20, 0, 1, (4, 64))
    config = deepseek(24, width=256, dense=4096, vocabulary=8192)
    return Size(config, (2, 12, 21), 2000, 600, 128, 512, 12 << 30, 44, 3, (32, 2048))


class Story:
    """What its steps share."""

    def __init__(self, out: Path) -> None:
        self.out, self.size = out, size()
        self.steps = steps.Steps(out / "story.json", SECONDS)
        self.smi, self.to = out / "smi.txt", machine.RAM / "home" / NAME
        self.prompts, self.beside = machine.HOME / "prompts.jsonl", threading.Thread()
        self.port, self.log, self.before, self.tree = 0, Path(), steps.gpu_mib(), ""

    @property
    def dumps(self) -> Path:
        """On the host."""
        return machine.DUMPS / NAME

    def tell(self) -> None:
        """All of it; what must be undone is undone whatever happened before."""
        try:
            if self.steps.do("prepare", self.prepare):
                self._tell()
        finally:
            self.steps.do("stop", self.stop)
            drain.unmount()
            reach.close()
            shutil.rmtree(machine.RAM, ignore_errors=True)

    def _tell(self) -> None:
        do = self.steps.do
        do("doctor", self.doctor)
        do("deploy", self.deploy)
        if do("launch", self.launch):
            do("graphs", self.graphs)
            do("verify --live", self.live, need=15)
            do("extract alone", self.alone, need=40)
            do("fetch alone", self.fetch_alone, need=20)
            do("extract and fetch", self.drained, need=60)
            do("verify", self.verify, need=20)
            do("prefill", self.prefill, need=60)
        do("revert", self.revert)

    def prepare(self, row: dict[str, Any]) -> bool:
        """The environment, the way, the model and the prompts."""
        machine.prepare()
        way = reach.way()
        server = machine.Server(
            NAME,
            self.size.config,
            tp=machine.TP or 1,
            args={**GRAPHS, "load-format": "auto", "mem-fraction-static": 0.5},
        )
        machine.write_inventory([server], list(self.size.boundaries), way=way)
        row["way"] = "OpenSSH on loopback" if way["ssh"] != "local" else "local"
        row["no_ram_disk"] = drain.mount(self.size.share)
        row["weights_bytes"] = machine.weigh(NAME)
        steps.record_smi(self.smi, "idle")
        some = self.size
        tokens = drain.write_prompts(self.prompts, some.samples, some.low, some.high, some.config["vocab_size"])
        row |= {"tokens": tokens, "samples": some.samples}
        self.tree = _tree()
        self.beside = threading.Thread(target=bench.touch, args=(some.touch,))
        if some.touch:
            self.beside.start()
        return True

    def doctor(self, row: dict[str, Any]) -> bool:
        """Whatever it finds is told; it must come to an end."""
        said = self.steps.ask(row, "doctor", most=60)
        found = said.data.get("hosts", {}).get("here", {})
        row["findings"] = [f"{one['level']}: {one['what']}" for one in found.get("findings", [])]
        row["levels"] = [one["level"] for one in found.get("findings", [])]
        row["cuda"], row["torch"] = (found.get("facts", {}).get(key) for key in ("cuda", "torch"))
        return said.exit in (0, 1)

    def deploy(self, row: dict[str, Any]) -> bool:
        """Twice: the second time there is nothing to do."""
        first = self.steps.ask(row, "deploy", "--yes", most=90)
        again = self.steps.ask(row, "deploy", "--yes", most=60)
        row["changed"] = _tree() != self.tree
        return not first.exit and not again.exit and bool(row["changed"])

    def launch(self, row: dict[str, Any]) -> bool:
        """Until it answers; and that it was recorded as a good run."""
        said = self.steps.ask(row, "launch", NAME, "--wait-healthy", "--timeout", "200", most=220)
        reached = [e for e in said.events if e.get("event") == "milestone-reached"]
        row["milestones"] = {f"{e['rank'] or 'main'} {e['milestone']}": e["seconds"] for e in reached}
        row["stages"] = {e["stage"]: e["seconds"] for e in said.events if e.get("event") == "stage-done"}
        row["health"] = {e["level"]: e["seconds"] for e in said.events if e.get("event") == "health-changed"}
        row["healthy_s"] = said.data.get("seconds")
        run = said.data.get("run") or {}
        self.port = int(run.get("port") or 0)
        self.log = machine.HOME / f"state/runs/{run.get('id')}/server.log"
        row["gpu_mib"], row["gpu_mib_before"] = steps.gpu_mib(), self.before
        steps.record_smi(self.smi, "loaded")
        listed = self.steps.ask(row, "baseline", "list", NAME, most=30)
        row["baselines"] = len(listed.data.get("baselines") or [])
        return said.exit == 0 and row["baselines"] > 0

    def graphs(self, row: dict[str, Any]) -> bool:
        """Decoding is replayed from CUDA graphs, by the server's own log."""
        body = {
            "input_ids": [5, 6, 7],
            "sampling_params": {"temperature": 0, "max_new_tokens": 100, "ignore_eos": True},
        }
        drive.post(self.port, body)
        text = self.log.read_text(errors="replace")
        row["decode_batches"] = dict(Counter(re.findall(r"Decode batch.*?cuda graph: (\w+)", text)))
        row["prefill_batches"] = dict(Counter(re.findall(r"Prefill batch.*?cuda graph: (\w+)", text)))
        captured = re.search(r"Capture cuda graph end\. Time elapsed: ([\d.]+) s", text)
        row["capture_s"] = float(captured[1]) if captured else None
        return bool(machine.LAB or (row["decode_batches"].get("True") and not row["prefill_batches"].get("True")))

    def live(self, row: dict[str, Any]) -> bool:
        """Seven checks of what is captured."""
        said = self.steps.ask(row, "verify", "--live", "-s", NAME, most=120)
        row["checks"] = {c["name"]: f"{c['status']}: {c['reason']}" for c in said.data.get("checks", [])}
        row |= {key: said.data.get(key) for key in ("pass", "fail", "skipped")}
        return said.exit == 0

    def alone(self, row: dict[str, Any]) -> bool:
        """The dump rate while nobody fetches."""
        if self.beside.is_alive():
            self.beside.join(60)
        words = ("extract", str(self.prompts), "-s", NAME, "--limit", str(self.size.alone), "--concurrency", "64")
        with drain.Watch(self.dumps, self.to) as watch:
            said = self.steps.ask(row, *words, most=90)
        row |= {key: said.data.get(key) for key in ("samples", "tokens", "bytes", "seconds")}
        row["GB_per_s"] = watch.told().get("dumped_GB_per_s")
        row["tokens_per_s"] = round((row["GB_per_s"] or 0) * 1e9 * (row["tokens"] or 0) / (row["bytes"] or 1))
        return said.exit == 0

    def fetch_alone(self, row: dict[str, Any]) -> bool:
        """The fetch rate while nobody writes, each dump removed on the host once it is safe here."""
        with drain.Watch(self.dumps, self.to) as watch:
            said = self.steps.ask(row, "fetch", "-s", NAME, "--to", str(self.to), "--evict", most=120)
        row |= {
            key: said.data.get(key) for key in ("channel", "streams", "fetched", "bytes_sent", "evicted", "seconds")
        }
        row["GB_per_s"] = watch.told().get("fetched_GB_per_s")
        return said.exit == 0

    def drained(self, row: dict[str, Any]) -> bool:
        """The rest, with the fetch beside."""
        row["share"] = self.size.share
        how = {"most": 200.0, "smi": self.smi, "concurrency": 64}
        right = drain.both(self.steps, row, self.prompts, self.to, server=NAME, count=self.size.samples, **how)
        return right and row["samples"] == self.size.samples and not list(self.dumps.glob("*.safetensors"))

    def verify(self, row: dict[str, Any]) -> bool:
        """Every byte, against the prompts."""
        said = self.steps.ask(row, "verify", str(self.to), "--prompts", str(self.prompts), most=150)
        row |= {key: said.data.get(key) for key in ("samples", "tokens", "bytes", "compared", "failed", "seconds")}
        row["findings"] = len(said.data.get("findings") or [])
        row["GB_per_s"] = _rate(said.data.get("bytes"), said.data.get("seconds"))
        return said.exit == 0 and row["compared"] == self.size.samples

    def prefill(self, row: dict[str, Any]) -> bool:
        """Without capture and with it, in turn; cost.py measures the same at length."""
        one = bench.Bench(NAME, self.port, [])
        count, length = self.size.passes
        vocabulary = self.size.config["vocab_size"]
        one.measure("none", drive.prompts(count, length, length, 99, vocabulary), _name("plain-w"), kept=False)
        for number in range(self.size.rounds):
            asked = drive.prompts(count, length, length, number, vocabulary)
            modes = ("none", "capture") if number % 2 else ("capture", "none")
            for mode in modes:
                one.measure(mode, asked, _name(f"{'hs' if mode == 'capture' else 'plain'}-p{number}."))
        plain, captured = one.rates("none"), one.rates("capture")
        row["tokens_per_s"] = {"none": round(median(plain)), "capture": round(median(captured))}
        row["of_plain"] = round(median(captured) / median(plain), 4)
        row["of_plain_by_round"] = [round(c / p, 4) for c, p in zip(captured, plain, strict=True)]
        row["counters"] = one.counters
        return not any(done.failed for done in one.passes)

    def revert(self, row: dict[str, Any]) -> bool:
        """Byte for byte as before."""
        said = self.steps.ask(row, "deploy", "--revert", "--yes", most=60, last=True)
        row["same_bytes"] = _tree() == self.tree
        return said.exit == 0 and bool(row["same_bytes"])

    def stop(self, row: dict[str, Any]) -> bool:
        """With its proof, and nvidia-smi's word."""
        said = self.steps.ask(row, "stop", NAME, most=60, last=True)
        row["proof"] = [one.get("proof") for one in said.data.get("stopped", [])]
        row["gpu_mib_before_launch"], row["gpu_mib_after"] = self.before, steps.gpu_mib()
        steps.record_smi(self.smi, "stopped")
        steps.keep_log(self.out / "story-server.log")
        back = self.before is None or (row["gpu_mib_after"] or 0) <= self.before + 64
        return said.exit == 0 and back


def _name(prefix: str) -> Callable[[int], str]:
    return lambda i: f"{prefix}{i}"


def _rate(amount: int | None, seconds: float | None) -> float | None:
    return round(amount / seconds / 1e9, 3) if amount and seconds else None


def _tree() -> str:
    """A hash over SGLang's files there, names and contents."""
    (site,) = Path(machine.PYTHON.parents[1], "lib").glob("python*/site-packages")
    whole = hashlib.sha256()
    for path in sorted(p for p in site.glob("sglang/**/*") if p.is_file() and p.suffix != ".pyc"):
        whole.update(f"{path.relative_to(site)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    for path in sorted(site.glob("hsops_hs_dump*")):
        whole.update(path.name.encode())
    return whole.hexdigest()


if __name__ == "__main__":
    Story(Path(sys.argv[1])).tell()
