"""What benchmarks.deploy deploys to: a loopback sshd, a Python with a real SGLang's files, and the wanted state."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from hsops.core.inventory import HsDumpPatch
from hsops.deploy import payload
from hsops.lab import sshd, wheels
from hsops.payload.hsops_hs_dump.strategy import REGISTRY_FILE
from tests.hosts import host_spec, inventory_text

PATCH = HsDumpPatch(name="hs-dump", boundaries=(3, 31, 59))
Stamp = tuple[int, int, int]


class Target:
    """The host's side, and the same files for everybody.

    Args:
        base: a new folder.
    """

    def __init__(self, base: Path) -> None:
        self.base, self.alias = base, "bench"
        (base / "home").mkdir()  # the login shell's start-up files are nobody's part of a deploy
        sshd.start(base / "sshd", alias=self.alias, extra=(f"SetEnv HOME={base}/home",))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", base / "venv"], check=True)
        self.python = base / "venv/bin/python"
        (self.site,) = (base / "venv").glob("lib/python3*/site-packages")
        with zipfile.ZipFile(wheels.ensure(wheels.DEFAULT, Path(sys.executable), lambda _: None)) as wheel:
            wheel.extractall(self.site)
        self.original = (self.site / REGISTRY_FILE).read_bytes()
        self.wanted = {**payload.build(PATCH).files, REGISTRY_FILE: payload.with_stanza(self.original)}
        self.config = base / "sshd/ssh_config"
        self._lay_out()

    def stop(self) -> None:
        """End the sshd and remove everything."""
        sshd.stop(self.base / "sshd")
        shutil.rmtree(self.base)

    @property
    def port(self) -> int:
        """Of the sshd."""
        running = sshd.status(self.base / "sshd")
        assert running
        return running.port

    def inventory(self) -> Path:
        """For hsops."""
        spec = host_spec(self.alias, self.base / "sshd").model_copy(
            update={"python": str(self.python), "state_dir": str(self.base / "state")}
        )
        path = self.base / "inventory.yaml"
        boundaries = list(PATCH.boundaries)
        path.write_text(
            f"{inventory_text(spec)}"
            f"servers:\n  kimi: {{ host: {self.alias}, model: moonshotai/Kimi-K2.5, patches: [hs-dump] }}\n"
            f"patches:\n  hs-dump: {{ boundaries: {boundaries} }}\ndefault: kimi\n"
        )
        return path

    def reset(self) -> None:
        """As before any deploy, and no tool has been there."""
        for folder in (self.site / payload.PACKAGE, self.base / "state", self.base / "home"):
            shutil.rmtree(folder, ignore_errors=True)
        (self.base / "home").mkdir()
        (self.site / REGISTRY_FILE).write_bytes(self.original)

    def check(self, tool: str) -> dict[str, Stamp]:
        """Every wanted file is there, byte for byte; returns how to see that none is written again."""
        for path, content in self.wanted.items():
            if (self.site / path).read_bytes() != content:
                raise SystemExit(f"{tool} did not bring {path}")
        stats = {path: (self.site / path).stat() for path in self.wanted}
        return {path: (s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for path, s in stats.items()}

    def _lay_out(self) -> None:
        """The wanted files as the others want them: a tree, and a tar of it."""
        self.tree, self.tar = self.base / "files", self.base / "files.tar"
        for path, content in self.wanted.items():
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / path).write_bytes(content)
        with tarfile.open(self.tar, "w") as tar:
            for path in sorted(self.wanted):
                tar.add(self.tree / path, path)
