"""The whole command over SSH: the agent is killed in the middle, the client is killed at some moment."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from hsops.core.inventory import HostSpec
from tests.faults.box import Box
from tests.faults.crash import ALL
from tests.faults.ground import Tree
from tests.faults.syscalls import Call, calls, strace
from tests.hosts import inventory_text, run_dir

SERVERS = "servers:\n  tiny: {{ host: {name}, model: /nowhere, patches: [hs-dump] }}\n"
PATCHES = "patches:\n  hs-dump: {{ boundaries: [{boundaries}] }}\ndefault: tiny\n"
# without a fault the interpreter is what it is; a fault is for one agent only
WRAPPER = """\
case "$4" in serve) if mv {fault} {fault}.taken 2>/dev/null; then
  exec {strace} -e "$(cat {fault}.taken)" "$@"
fi;; esac
exec "$@"
"""

pytestmark = pytest.mark.timeout(3600 if ALL else 300)


class Remote:
    """A box behind sshd, and hsops as a child process."""

    def __init__(self, box: Box, spec: HostSpec) -> None:
        self.box, self.fault, self.log = box, box.folder / "fault", box.folder / "trace"
        self.kept = box.folder / "kept"
        box.wrap(WRAPPER.format(fault=shlex.quote(str(self.fault)), strace=shlex.join(strace(self.log))))
        self.spec = spec.model_copy(update={"python": box.python, "state_dir": str(box.state)})
        self.want("1, 3")

    def want(self, boundaries: str) -> None:
        """Write the inventory."""
        text = inventory_text(self.spec) + SERVERS.format(name=self.spec.name) + PATCHES.format(boundaries=boundaries)
        (self.box.folder / "inventory.yaml").write_text(text)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """hsops deploy, under way."""
        command = [sys.executable, "-m", "hsops", "deploy", "--json", *words]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.box.folder, text=True, env=run_dir(), start_new_session=True, **pipes)

    def run(self, *words: str) -> tuple[int, list[str], dict[str, Any]]:
        """Exit status, what was noted about interrupted changes, and the envelope."""
        process = self.start(*words)
        out, _ = process.communicate(timeout=60)
        *events, envelope = [json.loads(line) for line in out.splitlines()]
        notes = [event["message"] for event in events if "interrupted change" in event.get("message", "")]
        return process.returncode, notes, envelope

    def traced(self, *words: str) -> list[Call]:
        """The agent's calls of an undisturbed run."""
        self.fault.write_text("verbose=none")
        code, _, envelope = self.run(*words)
        assert code == 0, envelope
        return calls(self.log)

    def save(self) -> None:
        """Keep the tree and what hsops remembers, for ``restore``."""
        shutil.rmtree(self.kept, ignore_errors=True)
        self.kept.mkdir()
        subprocess.run(["cp", "-a", str(self.box.site), str(self.box.state), str(self.kept)], check=True, timeout=60)

    def restore(self) -> None:
        """Each trial begins alike, to the lease: what a killed holder leaves costs the next one calls of its own."""
        for folder in (self.box.site, self.box.state):
            shutil.rmtree(folder)
            subprocess.run(["cp", "-a", str(self.kept / folder.name), str(folder)], check=True, timeout=60)

    def killed(self, point: Call, *words: str) -> dict[str, Any]:
        """The envelope of a run whose agent is killed as it enters a call, and at no other."""
        self.fault.write_text(f"inject={point.name}:signal=KILL:when={point.nth}")
        code, _, envelope = self.run(*words)
        assert code == 1 and "signal 9" in envelope["errors"][0]["message"], (str(point), envelope)
        assert calls(self.log)[-1].what == point.what, f"killed at {calls(self.log)[-1]}, not at {point}"
        return envelope


@pytest.fixture(scope="module")
def remote(sshd_host: HostSpec, tmp_path_factory: pytest.TempPathFactory) -> Remote:
    return Remote(Box(tmp_path_factory.mktemp("remote")), sshd_host)


def contents(tree: Tree) -> Tree:
    """Without time stamps: an apply promises none."""
    return {path: facts[:4] for path, facts in tree.items()}


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_the_agent_is_killed_and_the_next_command_says_so(verb: str, remote: Remote) -> None:
    """At renames and removals from the first to the record's: exit 1 with what to do, then a note, then old or new."""
    words = ("--yes",) if verb == "apply" else ("--revert", "--yes")
    there, back = remote.box.tree, [("--revert", "--yes"), ("--yes",)][verb == "revert"]
    for before in (words, back):  # the lock's first holder finds no lease to remove: a call fewer than all later ones
        remote.run(*before)
    remote.save()
    old = there()
    trace = remote.traced(*words)
    new = contents(there())
    site = str(remote.box.site)
    steps = [call for call in trace if call.name in ("rename", "unlink") and call.paths[-1].startswith(site)]
    commit = [call for call in trace if call.paths and call.paths[-1].endswith("record.json") and call.name != "openat"]
    journal = [call for call in trace if call.name == "unlink" and call.paths[-1].endswith("journal.json")]
    middle = steps[len(steps) // 2]
    points = [*steps, commit[-1], journal[-1]] if ALL else [middle, journal[-1]] if verb == "apply" else [commit[-1]]
    told: list[str] = []

    for point in points:
        remote.restore()
        assert "hsops deploy --status" in remote.killed(point, *words)["errors"][0]["fix"]
        code, notes, envelope = remote.run("--status")
        assert code == 0 and len(notes) == 1, (str(point), envelope)
        told += notes
        if "undone" in notes[0]:
            assert there() == old, str(point)
        else:
            assert "completed" in notes[0] and contents(there()) == new, str(point)

    assert "undone" in told[0] and ("completed" in told[-1] or points[-1] is commit[-1])
    assert remote.run(*words)[0] == 0 and contents(there()) == new  # the lease of the killed one keeps nobody out
    remote.run("--revert", "--yes")


def test_the_client_is_killed_at_random_moments(remote: Remote) -> None:
    """With everything that it started: the host ends old or new, and never stays half."""
    dice, seen = random.Random(20261130), set()
    remote.run("--revert", "--yes")
    old = remote.box.tree()
    started = time.monotonic()
    remote.run("--yes")
    whole = time.monotonic() - started
    new = contents(remote.box.tree())
    remote.run("--revert", "--yes")

    for _ in range(30 if ALL else 2):
        process = remote.start("--yes")
        time.sleep(whole * dice.uniform(0.3, 1.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
        wait_for_agents(remote.box)
        code, _, envelope = remote.run("--status")
        state = envelope["data"]["patches"][0]["state"]
        assert code == 0 and state in ("absent", "applied")
        tree = remote.box.tree()
        assert (contents(tree) == new) if state == "applied" else (tree == old)
        seen.add(state)
        remote.run("--revert", "--yes")
        assert remote.box.tree() == old

    print(seen)


def wait_for_agents(box: Box) -> None:
    """Until the host has noticed that the client is gone: it ends what the client had started."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        running = [p for p in psutil.process_iter(["cmdline"]) if str(box.state) in " ".join(p.info["cmdline"] or ())]
        if not running:
            return
        time.sleep(0.05)
    raise AssertionError(f"still running: {running}")
