"""The host, the dumps on it, and the folder that they go to."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from hsops.core.dumps import MANIFEST, Sample, parse_sample
from hsops.core.files import locked_folder
from hsops.lab import sshd
from tests.dump_maker import checksum_of
from tests.fetching import ROOT, SERVER
from tests.hosts import host_spec, inventory_text

MIB = 1 << 20
GATE = Path(__file__).parents[1] / "faults/gate.py"


@dataclass
class Ground:
    """One storm's place.

    Args:
        base: its folder.
        samples: what the manifest says now, by file name.
        good: all checksums that a file ever had.
        rewrites: how often a sample was extracted again.
    """

    base: Path
    samples: dict[str, Sample]
    good: dict[str, set[str]]
    rewrites: int = 0

    @property
    def source(self) -> Path:
        """The dump folder on the host."""
        return self.base / "dumps/tiny"

    @property
    def to(self) -> Path:
        """The local folder: a file system of its own, so that it can be full."""
        return self.base / "to"

    @property
    def total(self) -> int:
        """Bytes of all dumps."""
        return sum(s.bytes for s in self.samples.values())

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A fetch."""
        command = [
            sys.executable,
            "-m",
            "hsops",
            "-i",
            str(self.base / "inventory.yaml"),
            "fetch",
            "--to",
            str(self.to),
        ]
        with (self.base / "events").open("w") as events, (self.base / "errors").open("w") as errors:
            return subprocess.Popen(
                [*command, "--json", *words],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=events,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def events(self) -> list[dict[str, object]]:
        """What the fetch told; a last line that a kill cut is left out."""
        found = []
        for line in (self.base / "events").read_text().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def missing(self) -> int:
        """Bytes that a rerun has to send, by what lies in the target."""
        left, held = 0, self._held()
        for name, sample in self.samples.items():
            if not (self.to / name).exists() or held.get(name, sample.checksum) != sample.checksum:
                left += sample.bytes - self._begun(sample)
        return left

    def _held(self) -> dict[str, str]:
        """Checksums of the local manifest: a sample that was extracted again since is missing, whatever lies there."""
        manifest = self.to / MANIFEST
        lines = manifest.read_text().split("\n")[:-1] if manifest.exists() else []
        return {sample.file: sample.checksum for sample in map(parse_sample, lines)}

    def received(self) -> int:
        """Blocks that are used here: pieces leave holes."""
        total = 0
        for path in self.to.iterdir():
            with suppress(FileNotFoundError):
                total += path.stat().st_blocks * 512
        return total

    def _begun(self, sample: Sample) -> int:
        part = self.to / f"{sample.file}.{sample.checksum.partition(':')[2]}.part"
        pieces = Path(f"{part}.pieces")
        if pieces.exists():
            lines = [line.split() for line in pieces.read_text().split("\n")[:-1]]
            return sum(int(end) - int(start) for start, end, _ in lines)
        return part.stat().st_size if part.exists() else 0

    def rewrite(self, name: str, dice: random.Random) -> None:
        """A sample is extracted again: other content, renamed into place, then its line."""
        if not (self.source / name).exists():
            return
        data = np.random.default_rng(dice.randrange(1 << 30)).bytes(self.samples[name].bytes)
        self.rewrites += 1
        sample = replace(self.samples[name], checksum=checksum_of(data))
        self.good[name].add(sample.checksum)
        for place in (self.base / "pristine", self.source):
            part = place / f"{name}.part"
            part.write_bytes(data)
            part.rename(place / name)
        self.samples[name] = sample
        with (self.source / MANIFEST).open("a") as file:
            file.write(json.dumps(asdict(sample)) + "\n")

    def refill(self) -> None:
        """Everything on the host again, nothing here: under new inodes, as a run would write it."""
        for path in self.to.iterdir():
            path.unlink()
        for name in self.samples:
            if not (self.source / name).exists():
                shutil.copyfile(self.base / "pristine" / name, self.source / f"{name}.part")
                (self.source / f"{name}.part").rename(self.source / name)

    def faults(self) -> list[str]:
        """Where the target is not what the manifest says; what is unfinished and left."""
        names = {p.name for p in self.to.iterdir() if not p.name.startswith(".")} - {MANIFEST}
        wrong = names ^ set(self.samples)
        wrong |= {
            name
            for name, sample in self.samples.items()
            if name in names and checksum_of((self.to / name).read_bytes()) != sample.checksum
        }
        return sorted(wrong)

    def flip(self, at: int) -> None:
        """In the next stream over ssh one byte becomes another, where no cipher sees it."""
        (self.base / "gate/gate.plan").write_text(f"flip {at}\n")

    def sessions(self) -> list[psutil.Process]:
        """sshd's processes of the connections that there are."""
        running = sshd.status(self.base / "sshd")
        return _children(running.pid) if running else []

    def agents(self, *verbs: str) -> list[psutil.Process]:
        """Agents on the host that serve one of these."""
        return [p for p in self.sessions() if set(_command(p)[-1:]) & set(verbs)]


@contextmanager
def ground(base: Path, large: int, small: int) -> Iterator[Ground]:
    """Dumps of 100 MiB, of 40 and of 100 KB, one of 300 MiB, and an sshd, while the context is open. Needs root."""
    with locked_folder(base, "another storm has"):
        (base / "gate").mkdir()
        (base / "to").mkdir()
        (base / "pristine").mkdir()
        made = Ground(base, {}, {})
        made.source.mkdir(parents=True)
        sizes = {
            **{f"l{i}": 100 * MIB for i in range(large)},
            "huge": 300 * MIB,
            **{f"s{i}": 100_000 if i % 2 else 40_000 for i in range(small)},  # the smaller come in one frame
        }
        _write(made, sizes)
        (base / "gate/python").write_text(f"#!{sys.executable}\n{GATE.read_text()}")
        (base / "gate/python").chmod(0o755)
        sshd.start(base / "sshd", alias="storm")
        room = made.total + 256 * MIB
        try:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "hsops-storm", str(made.to)], check=True)
            changes = {"python": str(base / "gate/python"), "dumps": str(base / "dumps")}
            spec = host_spec("storm", base / "sshd").model_copy(update=changes)
            (base / "inventory.yaml").write_text(inventory_text(spec) + SERVER.format(host="storm"))
            yield made
        finally:
            subprocess.run(["umount", "--lazy", str(made.to)], check=False)
            sshd.stop(base / "sshd")


def _write(made: Ground, sizes: dict[str, int]) -> None:
    dice = np.random.default_rng(0)
    with (made.source / MANIFEST).open("w") as manifest:
        for id_, size in sizes.items():
            data = dice.bytes(size)
            sample = Sample(id_, "ok", 1, (1,), "none", "BF16", 1, size, checksum_of(data), "", "r", "p", "0.5.9")
            (made.base / "pristine" / sample.file).write_bytes(data)
            shutil.copyfile(made.base / "pristine" / sample.file, made.source / sample.file)
            made.samples[sample.file], made.good[sample.file] = sample, {sample.checksum}
            manifest.write(json.dumps(asdict(sample)) + "\n")


def _children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []
