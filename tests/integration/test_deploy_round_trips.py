"""What a deploy costs on the wire: counted by the host's sshd and by its interpreter, not timed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hsops.deploy.payload import PACKAGE
from hsops.deploy.plan import OLD_MODULE
from hsops.payload.hsops_hs_dump.strategy import REGISTRY_FILE
from tests.hosts import Server, ServerFactory, run_dir
from tests.unit.sources import REGISTRY

SERVERS = """\
servers:
  kimi: { host: counted, model: /nowhere, patches: [hs-dump] }
patches:
  hs-dump: { boundaries: [1, 3] }
default: kimi
"""


@dataclass(frozen=True)
class Count:
    """What one command made the host do; ``asked``: the agent's verbs, ``said``: the bytes of its answers.

    ``trips``: how often it was asked, for several things at once perhaps.
    """

    connections: int
    sessions: int
    interpreters: int
    trips: int
    asked: list[str]
    said: int


class Host:
    """A host with an SGLang, whose interpreter notes what it is asked."""

    def __init__(self, server: Server, folder: Path, write_inventory: Callable[..., Path]) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
        (self.site,) = (folder / "venv").glob("lib/python3*/site-packages")
        (self.site / REGISTRY_FILE).parent.mkdir(parents=True)
        (self.site / REGISTRY_FILE).write_text(REGISTRY)
        (self.site / OLD_MODULE).write_text("# as long as the real one\n" * 5000)
        (self.site / "sglang/__init__.py").touch()
        (self.site / "sglang/version.py").write_text('__version__ = "0.5.9"\n')
        python, run = folder / "python", f'{folder}/venv/bin/python "$@"'
        python.write_text(f"#!/bin/sh\necho >>{folder}/starts\ntee -a {folder}/asked | {run} | tee -a {folder}/said\n")
        python.chmod(0o755)
        spec = server.spec.model_copy(update={"python": str(python), "state_dir": str(folder / "state")})
        self._log, self._folder = server.folder / "sshd.log", folder
        self._inventory = write_inventory(spec, more=SERVERS)

    def deploy(self, *words: str, code: int = 0) -> Count:
        """``hsops deploy`` as a user runs it; it ends with ``code``."""
        before = self._log.stat().st_size
        for name in ("starts", "asked", "said"):
            (self._folder / name).write_text("")
        command = [sys.executable, "-m", "hsops", "-i", str(self._inventory), "deploy", "--yes", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False, env=run_dir()
        )
        assert done.returncode == code, done.stdout + done.stderr
        self._wait_for_notes()
        log = self._log.read_bytes()[before:].decode()
        lines = [json.loads(line) for line in (self._folder / "asked").read_text().splitlines()]
        asked = [one["verb"] for line in lines for one in (line if isinstance(line, list) else [line])]
        starts = len((self._folder / "starts").read_text().splitlines())
        said = (self._folder / "said").stat().st_size
        return Count(log.count("Accepted publickey"), log.count("Starting session"), starts, len(lines), asked, said)

    def _wait_for_notes(self) -> None:
        """A tee hands on before it notes: the notes are whole when it has ended."""
        until, mine = time.monotonic() + 60, {str(self._folder / name) for name in ("asked", "said")}
        while any(mine & set(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])):
            assert time.monotonic() < until
            time.sleep(0.02)

    def stamps(self) -> dict[Path, tuple[int, int, int]]:
        """How to see that nothing was written."""
        stats = {path: path.stat() for path in self.site.rglob("*")}
        return {path: (s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for path, s in stats.items()}


@pytest.fixture
def host(new_server: ServerFactory, tmp_path: Path, write_inventory: Callable[..., Path]) -> Host:
    """A host that was never deployed to."""
    return Host(new_server("counted", extra=("LogLevel VERBOSE",)), tmp_path, write_inventory)


def test_a_deploy_is_one_connection_one_session_and_one_interpreter(host: Host) -> None:
    """The first one too, which brings the agent; the next asks three questions at once and writes nothing."""
    first = host.deploy()
    there = host.stamps()
    again = host.deploy()

    assert (first.connections, first.sessions, first.interpreters) == (1, 1, 1)
    assert first.asked[-1] == "patch-apply" and first.trips <= 4, first
    assert (again.connections, again.sessions, again.interpreters) == (1, 1, 1)
    assert again.asked == ["patch-inspect", "patch-inspect", "run-list"] and again.trips == 1
    assert host.stamps() == there
    assert again.said < sum(path.stat().st_size for path in there if path.parent.name == PACKAGE) / 4


def test_a_login_that_was_begun_in_vain_asks_nothing(host: Host) -> None:
    """The inventory has a fault elsewhere: that is told, and the host is as before."""
    host.deploy()
    agent = host._folder / "state/agent"
    before = sorted(agent.iterdir())
    with host._inventory.open("a") as file:
        file.write("groups: { all: [nobody] }\n")

    done = host.deploy(code=4)

    assert done.asked == []
    assert sorted(agent.iterdir()) == before


def test_a_deploy_loads_no_second_ssh(host: Host) -> None:
    """What paramiko and fabric take to load is longer than the rest; that it is loaded after the login has begun."""
    host.deploy()
    command = [sys.executable, "-X", "importtime", "-m", "hsops", "-i", str(host._inventory), "deploy", "--yes"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=run_dir())

    loaded = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert not {"fabric", "paramiko", "httpx", "numpy"}.intersection(loaded)
    before_the_login = loaded[: loaded.index("hsops.remote.openssh")]
    assert not {"typer", "pydantic", "zipfile", "rich"}.intersection(before_the_login)
    assert {"typer", "pydantic"} <= set(loaded)
