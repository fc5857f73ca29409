"""A host whose SGLang is a few files, deployed to by hsops' own code: the client in this process, the agent as ever."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hsops.core.events import Event, Note
from hsops.core.inventory import HsDumpPatch
from hsops.deploy import do, payload, plan
from hsops.deploy.do import Done
from hsops.deploy.payload import PACKAGE
from hsops.deploy.planned import Plan
from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost
from hsops.remote.lock import Lock
from tests.faults.ground import LONG_AGO, Tree, tree

TTL_S = 600.0  # a renewal is a call more, at some moment: faults are put at the n-th call of a recorded run
REGISTRY = "sglang/srt/models/registry.py"
SOURCE = b"""\
class _Registry:
    def resolve_model_cls(self, architectures):
        return architectures


ModelRegistry = _Registry()
"""


class Box:
    """A folder with an interpreter, a small SGLang and hsops' state.

    Args:
        folder: where.
        python: the interpreter that the virtual environment is of.
        state: hsops' folder, when it is to lie elsewhere.
    """

    def __init__(self, folder: Path, *, python: str = sys.executable, state: Path | None = None) -> None:
        self.folder, self.state = folder, state or folder / "state"
        self.told: list[str] = []  # what the agent did beside what it was asked for
        subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
        (self.site,) = (folder / "venv").glob("lib/python3*/site-packages")
        self.python = str(folder / "venv/bin/python")
        self.registry = self.site / REGISTRY
        furnish(self.site)

    def write(self, source: bytes) -> None:
        """Another registry."""
        self.registry.write_bytes(source)
        os.utime(self.registry, ns=(LONG_AGO, LONG_AGO))

    def wrap(self, script: str) -> None:
        """Let the interpreter run at the end of a shell script (``"$@"`` is it)."""
        wrapper = self.folder / "python"
        wrapper.write_text(f'#!/bin/sh\nset -- {shlex.quote(self.python)} "$@"\n{script}\n')
        wrapper.chmod(0o755)
        self.python = str(wrapper)

    def deploy(self, *, boundaries: tuple[int, ...] = (1, 3), force: bool = False) -> Plan:
        """As ``hsops deploy``; returns what was planned."""
        with self._agent() as agent:
            patch = HsDumpPatch(name="hs-dump", boundaries=boundaries)
            planned = plan.plan(do.look(agent, "hs-dump"), payload.build(patch), force=force)
            if planned.needed:
                do.apply(Lock(agent, "test", ttl=TTL_S), planned)
            return planned

    def status(self) -> str:
        """The state of the patch."""
        with self._agent() as agent:
            wanted = payload.build(HsDumpPatch(name="hs-dump", boundaries=(1, 3)))
            return plan.status(do.look(agent, "hs-dump"), wanted).state

    def revert(self, *, force: bool = False) -> Done:
        """As ``hsops deploy --revert``."""
        with self._agent() as agent:
            planned = plan.plan_revert(do.look(agent, "hs-dump"), "hs-dump", force=force)
            return do.revert(Lock(agent, "test", ttl=TTL_S), planned, force=force)

    def tree(self) -> Tree:
        """Everything below the site."""
        return tree(self.site)

    def stamps(self) -> dict[str, tuple[int, int]]:
        """When each file and folder was changed: its bytes, and anything of it."""
        found = {path: path.lstat() for path in [self.site, *self.site.rglob("*")]}
        return {str(path): (told.st_mtime_ns, told.st_ctime_ns) for path, told in found.items()}

    def imports(self, module: str = "sglang.srt.models.registry", **env: str) -> subprocess.CompletedProcess[str]:
        """Import a module as a server does, byte code and all: says its ``x``, and whether the stanza was executed."""
        code = f"import sys, {module} as m; print(getattr(m, 'x', None), {PACKAGE!r} in sys.modules)"
        command = [self.python, "-c", code]
        environment = {"PATH": os.environ["PATH"], **env}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)

    def _hear(self, event: Event) -> None:
        assert isinstance(event, Note)
        self.told.append(event.message)

    @contextmanager
    def _agent(self) -> Iterator[Agent]:
        host = LocalHost("box")
        try:
            yield Agent(host, python=self.python, state_dir=str(self.state), emit=self._hear)
        finally:
            host.close()


def furnish(site: Path) -> None:
    """The files of SGLang that a deploy looks at."""
    (site / "sglang/srt/models").mkdir(parents=True)
    for folder in ("sglang", "sglang/srt", "sglang/srt/models"):
        (site / folder / "__init__.py").touch()
    (site / "sglang/version.py").write_text('__version__ = "0.5.9"\n')
    (site / REGISTRY).write_bytes(SOURCE)
    for path in site.rglob("*"):
        os.utime(path, ns=(LONG_AGO, LONG_AGO))


__all__ = ["PACKAGE", "REGISTRY", "SOURCE", "Box", "furnish"]
