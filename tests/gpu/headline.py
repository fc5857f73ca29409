"""Ten thousand samples, 17.3 million tokens, drained while they are made. Run through ``tests/gpu/run.sh headline``.

A DeepSeek-V3-shaped model of hidden size 512 with random weights, prompts of 1,230 to 2,230 tokens, three boundaries
and the final state: 4,096 bytes a token, 71 GB in all, through a RAM disk of 4 GiB by ``fetch --follow --evict`` into
the machine's memory; then every byte is verified. When a pilot says that there is no time for all of it, there are
fewer samples, and it says so. Writes ``headline.json`` and the server's log into the folder given.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu import drain, machine, reach, rehearsal, steps
from tests.gpu.models import deepseek

NAME = "narrow"
SECONDS = 530.0
CONCURRENCY = 96
AFTER_S = 25.0  # for revert, stop and what a fetch is behind
VERIFY_GB_PER_S = 1.5  # expected; what it does is told


@dataclass(frozen=True)
class Size:
    """``samples`` of ``low`` to ``high`` tokens through ``share`` bytes; twice ``pilot`` tell how fast it goes."""

    config: dict[str, Any]
    boundaries: tuple[int, ...]
    samples: int
    pilot: int
    low: int
    high: int
    share: int


def size() -> Size:
    """Of the machine, or of a rehearsal."""
    if machine.LAB:
        return Size(rehearsal.config(), (1, 3, 5), 400, 15, 8, 60, 3 << 20)
    config = deepseek(8, hidden=512, heads=16, width=256, dense=2048, vocabulary=8192)
    return Size(config, (1, 4, 7), 10_000, 150, 1230, 2230, 4 << 30)


class Headline:
    """What its steps share."""

    def __init__(self, out: Path) -> None:
        self.out, self.size = out, size()
        self.steps = steps.Steps(out / "headline.json", SECONDS)
        self.prompts, self.to = machine.HOME / "prompts.jsonl", machine.RAM / "home" / NAME
        self.count = self.size.samples

    def tell(self) -> None:
        """All of it; what must be undone is undone whatever happened before."""
        do = self.steps.do
        try:
            if do("prepare", self.prepare) and do("deploy", self.deploy) and do("launch", self.launch):
                do("pilot", self.pilot)
                do("extract and fetch", self.drained, need=60)
                do("verify", self.verify, need=10)
            do("revert", self.revert)
        finally:
            do("stop", self.stop)
            drain.unmount()
            reach.close()
            shutil.rmtree(machine.RAM, ignore_errors=True)

    def prepare(self, row: dict[str, Any]) -> bool:
        """The environment, the way, the model and the prompts."""
        machine.prepare()
        way, some = reach.way(), self.size
        args = {"load-format": "auto", "mem-fraction-static": 0.5, "max-running-requests": 128}
        machine.write_inventory([machine.Server(NAME, some.config, args=args)], list(some.boundaries), way=way)
        row["way"] = "OpenSSH on loopback" if way["ssh"] != "local" else "local"
        row["no_ram_disk"] = drain.mount(some.share)
        row["weights_bytes"] = machine.weigh(NAME)
        row["tokens"] = drain.write_prompts(self.prompts, some.samples, some.low, some.high, some.config["vocab_size"])
        row |= {"samples": some.samples, "share": some.share, "hidden": some.config["hidden_size"]}
        return True

    def deploy(self, row: dict[str, Any]) -> bool:
        """As story.py looks at it more closely."""
        return self.steps.ask(row, "deploy", "--yes", most=90).exit == 0

    def launch(self, row: dict[str, Any]) -> bool:
        """Until it answers."""
        said = self.steps.ask(row, "launch", NAME, "--wait-healthy", "--timeout", "200", most=220)
        row["healthy_s"] = said.data.get("seconds")
        return said.exit == 0

    def pilot(self, row: dict[str, Any]) -> bool:
        """How fast it goes, hence how many samples there is time for."""
        few, lines = machine.HOME / "pilot.jsonl", self.prompts.read_text().splitlines(keepends=True)
        for part in (1, 2):  # in the first SGLang's kernels are compiled
            few.write_text("".join(lines[: part * self.size.pilot]))
            words = ("extract", str(few), "-s", NAME, "--concurrency", str(CONCURRENCY))
            said = self.steps.ask(row, *words, most=60)
        seconds, samples = said.data.get("seconds") or 1, said.data.get("samples") or 1
        each_s = seconds / self.size.pilot + (said.data.get("bytes") or 0) / samples / VERIFY_GB_PER_S / 1e9
        fits = int((self.steps.left - AFTER_S) / each_s)
        self.count = min(self.size.samples, max(fits, 2 * self.size.pilot))
        self.prompts.write_text("".join(lines[: self.count]))
        row["tokens_per_s"] = round((said.data.get("tokens") or 0) / samples * self.size.pilot / seconds)
        row |= {"fit": fits, "count": self.count, "cut": self.count < self.size.samples}
        return said.exit == 0

    def drained(self, row: dict[str, Any]) -> bool:
        """All of them, with the fetch beside."""
        most = self.steps.left - AFTER_S
        how = {"most": most, "concurrency": CONCURRENCY}
        right = drain.both(self.steps, row, self.prompts, self.to, server=NAME, count=self.count, **how)
        return right and row["samples"] == self.count

    def verify(self, row: dict[str, Any]) -> bool:
        """Every byte, against the prompts."""
        most = self.steps.left
        said = self.steps.ask(row, "verify", str(self.to), "--prompts", str(self.prompts), most=most)
        row |= {key: said.data.get(key) for key in ("samples", "tokens", "bytes", "compared", "failed", "seconds")}
        row["findings"] = len(said.data.get("findings") or [])
        if said.data.get("seconds"):
            row["GB_per_s"] = round(said.data["bytes"] / said.data["seconds"] / 1e9, 3)
        return said.exit == 0 and row["compared"] == self.count

    def revert(self, row: dict[str, Any]) -> bool:
        """Out again."""
        return self.steps.ask(row, "deploy", "--revert", "--yes", most=60, last=True).exit == 0

    def stop(self, row: dict[str, Any]) -> bool:
        """With its proof."""
        said = self.steps.ask(row, "stop", NAME, most=60, last=True)
        row["proof"] = [one.get("proof") for one in said.data.get("stopped", [])]
        steps.keep_log(self.out / "headline-server.log")
        return said.exit == 0


if __name__ == "__main__":
    Headline(Path(sys.argv[1])).tell()
