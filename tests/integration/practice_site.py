"""A host over the real sshd, whose Python has a small tree that passes for SGLang, and ``hsops deploy`` on it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hsops.cli.deploy import Wish, put
from hsops.cli.options import Options
from hsops.cli.wiring import Session
from hsops.core.errors import HsopsError
from hsops.remote.agent import Agent
from hsops.render.console import Console, Outcome, error_lines
from tests.hosts import inventory_text

MODEL = "sglang/srt/models/model.py"
LINES = [f"line {i}\n" for i in range(1, 41)]
Tree = dict[str, tuple[int, bytes]]


@dataclass
class Site:
    """The tree, and the folder that holds inventory.yaml.

    Args:
        folder: of inventory.yaml and the patches' own files.
        root: the host's site-packages.
        spec: the host, in YAML.
    """

    folder: Path
    root: Path
    spec: str
    stack: ExitStack = field(default_factory=ExitStack)
    agents: dict[str, Agent] = field(default_factory=dict)

    def patches(self, text: str, *, server: str = "") -> None:
        """Write inventory.yaml with these patches."""
        names = [line.split(":")[0].strip() for line in text.splitlines() if line[:2].isspace() and line[2:3].strip()]
        used = server or ", ".join(names)
        servers = f"servers:\n  s: {{ host: practice, model: /nowhere, patches: [{used}] }}\ndefault: s\n"
        (self.folder / "inventory.yaml").write_text(f"{self.spec}{servers}patches:\n{text}")

    def ok(self, *words: str) -> dict[str, Any]:
        """The data of a deploy that succeeds."""
        outcome = self._put(words)
        assert outcome.exit_code == 0, outcome
        return outcome.data

    def refused(self, *words: str, code: int = 1) -> str:
        """What a deploy says that is refused; it changes nothing."""
        before = self.tree()
        with pytest.raises(HsopsError) as caught:
            self._put(words)
        assert caught.value.exit_code == code, caught.value
        assert self.tree() == before
        return "\n".join(error_lines(caught.value))

    def session(self) -> Session:
        """A command in this process, over one connection: Python and SSH would else start each time."""
        options = Options(inventory=str(self.folder / "inventory.yaml"), yes=True)
        return Session(options, Console("deploy", as_json=False, color=False), self.stack, self.agents)

    def put(self, wish: Wish) -> Outcome:
        """``hsops deploy``'s body."""
        return put(self.session(), wish)

    def _put(self, words: tuple[str, ...]) -> Outcome:
        named = tuple(word for word in words if not word.startswith("--"))
        return self.put(Wish(named, **{word[2:]: True for word in words if word.startswith("--")}))

    def states(self) -> dict[str, str]:
        """Each patch's state."""
        return {row["patch"]: row["state"] for row in self.ok("--status")["patches"]}

    def tree(self) -> Tree:
        """Every file below the root: mode and bytes."""
        files = [path for path in sorted(self.root.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.root)): (path.stat().st_mode & 0o7777, path.read_bytes()) for path in files}

    def write(self, path: str, content: bytes | str, mode: int = 0o644) -> Path:
        """One file of the tree."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(mode)
        return target

    def diff(self, change: Mapping[str, str | bytes | None], name: str = "fix.patch", *options: str) -> bytes:
        """Make a diff with git of what ``change`` does to the tree; the tree stays. None removes a file."""
        git = ["git", "-c", "core.autocrlf=false", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(self.root)]

        def run(*words: str) -> bytes:
            return subprocess.run([*git, *words], check=True, capture_output=True, timeout=60).stdout

        run("init", "-q")
        run("add", "-A")
        run("commit", "-qm", "x")
        for path, content in change.items():
            self.write(path, content) if content is not None else (self.root / path).unlink()
        run("add", "-A")
        text = run("diff", "--cached", *options)
        run("reset", "-q", "--hard")
        subprocess.run(["rm", "-rf", str(self.root / ".git")], check=True, timeout=60)
        (self.folder / name).write_bytes(text)
        return text


def practice_site(spec: Any, folder: Path) -> Site:
    """A new host on the sshd of ``spec``, with a virtual environment of its own below ``folder``."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
    (root,) = (folder / "venv").glob("lib/python3*/site-packages")
    update = {"python": str(folder / "venv/bin/python"), "state_dir": str(folder / "state")}
    site = Site(folder / "here", root, inventory_text(spec.model_copy(update=update)))
    site.folder.mkdir()
    site.write("sglang/__init__.py", "")
    site.write("sglang/version.py", '__version__ = "0.5.9"\n')
    site.write(MODEL, "".join(LINES))
    return site
