"""``hsops deploy`` on several hosts: the first alone, the rest side by side, and what is told of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hsops.deploy.payload import BEGIN
from hsops.payload.hsops_hs_dump.strategy import REGISTRY_FILE
from tests.hosts import Server, run_dir
from tests.unit.sources import REGISTRY

NAMES = "abc"
# The interpreter of each host: before it hands patch-apply to its agent it does what the file `trouble` says.
WRAPPER = """\
#!/bin/sh
here=$(dirname "$0")
[ -e "$here/trouble" ] || exec "$here/venv/bin/python" "$@"
while read -r line; do
  case $line in *'"patch-apply"'*) . "$here/trouble" ;; esac
  printf '%s\\n' "$line"
done | "$here/venv/bin/python" "$@"
"""
SCRIPT = "kind: script, run: ./apply.py, files: [sglang/hand.py]"
# It notes on which host it runs, and which hosts have its file by then; on the host `odd` it does something else.
APPLY = """\
import pathlib, sys
folder = pathlib.Path({folder!r})
here = pathlib.Path(sys.executable).relative_to(folder).parts[0]
there = [n for n in "abc" if list((folder / n / "venv").glob("lib/python3*/site-packages/sglang/hand.py"))]
with (folder / "ran").open("a") as file:
    print(here, "".join(there), file=file)
if (folder / here / "broken").exists():
    sys.exit(3)
pathlib.Path("sglang/hand.py").write_text("odd = 1\\n" if (folder / here / "odd").exists() else "x = 1\\n")
"""
# a change that the host's system refuses
REFUSE = """\
mv "$here/state/patches" "$here/state/away" 2>/dev/null
touch "$here/state/patches"
"""


@dataclass
class Fleet:
    """Three hosts behind one sshd, each with a Python and an SGLang of its own."""

    folder: Path
    port: int

    def trouble(self, host: str, script: str) -> None:
        """What a deploy on ``host`` meets, as shell."""
        (self.folder / host / "trouble").write_text(f"{script}\n")

    def well(self, host: str) -> None:
        """No trouble any more, and nothing left of it."""
        (self.folder / host / "trouble").unlink(missing_ok=True)
        patches = self.folder / host / "state/patches"
        if patches.is_file():
            patches.unlink()
        if (patches.parent / "away").exists():
            (patches.parent / "away").rename(patches)

    def applied(self) -> str:
        """The hosts whose SGLang has the stanza."""
        found = [name for name in NAMES if BEGIN in self._registry(name).read_text()]
        return "".join(found)

    def start(self, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """A running ``hsops``."""
        return subprocess.Popen(
            [sys.executable, "-m", "hsops", *words],
            cwd=self.folder,
            env=run_dir(),
            text=True,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def hsops(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``hsops`` to its end."""
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in out + err
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def deploy(self, *words: str) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
        """``hsops deploy --yes --json``: exit code, envelope, event lines."""
        done = self.hsops("deploy", "--yes", "--json", *words)
        *events, envelope = [json.loads(line) for line in done.stdout.splitlines()]
        return done.returncode, envelope, events

    def _registry(self, name: str) -> Path:
        (site,) = (self.folder / name / "venv").glob("lib/python3*/site-packages")
        return site / REGISTRY_FILE

    def make(self, name: str) -> None:
        """One host's Python and SGLang."""
        venv = self.folder / name / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
        self._registry(name).parent.mkdir(parents=True)
        self._registry(name).write_text(REGISTRY)
        package = self._registry(name).parents[2]
        (package / "__init__.py").touch()
        (package / "version.py").write_text('__version__ = "0.5.9"\n')
        python = self.folder / name / "python"
        python.write_text(WRAPPER)
        python.chmod(0o755)


@pytest.fixture(scope="module")
def made(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """The hosts, once."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), server.port)
    lines = ["hosts:"]
    for name in NAMES:
        fleet.make(name)
        at = fleet.folder / name
        ways = f"ssh: {server.spec.ssh}, ssh_config: {fleet.folder}/config-{name}"
        lines.append(f"  {name}: {{ {ways}, python: {at}/python, state_dir: {at}/state }}")
    lines += ["  down: { ssh: 'nobody@127.0.0.1:1', python: /p }", "groups: { all: [a, b, c], part: [a, down, b] }"]
    lines += ["servers:"]
    lines += [f"  s-{name}: {{ host: {name}, model: some/model, patches: [hs-dump] }}" for name in (*NAMES, "down")]
    lines += ["patches:", "  hs-dump: { boundaries: [1, 3] }", f"  hand: {{ {SCRIPT} }}", "default: s-a"]
    (fleet.folder / "inventory.yaml").write_text("\n".join(lines) + "\n")
    config = (server.folder / "ssh_config").read_text()
    for name in NAMES:
        (fleet.folder / f"config-{name}").write_text(config)
    return fleet


@pytest.fixture
def fleet(made: Fleet) -> Iterator[Fleet]:
    """The hosts, as new."""
    yield made
    for name in NAMES:
        made.well(name)
    if words := [word for name in made.applied() for word in ("--host", name)]:
        assert made.hsops("deploy", "--revert", "--force", "--yes", *words).returncode == 0
    assert made.applied() == ""


def test_a_group_gets_one_plan_one_table_and_nothing_the_second_time(fleet: Fleet) -> None:
    """Equal plans are shown as one; the next deploy has nothing to do; revert works the same way."""
    first = fleet.hsops("deploy", "--yes", "--group", "all")
    again = fleet.hsops("deploy", "--yes", "--group", "all")
    code, envelope, events = fleet.deploy("--revert", "--group", "all", "--parallel", "1")

    assert first.returncode == 0, first.stderr
    assert first.stderr.count("3 hosts, the same plan: a, b, c") == 1
    assert first.stderr.count("site-packages/hsops_hs_dump/") == 1
    assert [line.split()[:4] for line in first.stdout.splitlines()[1:4]] == [
        [n, "absent", "->", "applied"] for n in NAMES
    ]
    assert "a: absent -> applied in" in first.stderr
    assert again.returncode == 0 and "nothing to do" in again.stdout and "->" not in again.stdout
    assert code == 0 and [entry["after"] for entry in envelope["data"]["hosts"]] == ["absent"] * 3
    assert [event["host"] for event in events if event["event"] == "host-ended"] == list(NAMES)


def test_nothing_else_is_touched_when_the_first_host_fails(fleet: Fleet) -> None:
    """The exit code is that of its error; the command that finishes the rest names them all."""
    fleet.trouble("a", REFUSE)

    text = fleet.hsops("deploy", "--yes", "--group", "all")

    assert (text.returncode, fleet.applied()) == (1, "")
    assert [line.rpartition("  ")[2] for line in text.stdout.splitlines()[1:4]] == [
        "FAILED, see below",
        "not begun",
        "not begun",
    ]
    assert "a: patch-apply failed: File exists" in text.stdout
    assert "a goes first and failed: the hosts after it were not touched" in text.stdout
    assert text.stdout.rstrip().endswith("the rest: hsops deploy --host a --host b --host c")


def test_an_agent_that_dies_is_told_as_that(fleet: Fleet) -> None:
    """Its last words are shown; nobody took the lock from it."""
    assert fleet.hsops("deploy", "--yes", "--host", "a").returncode == 0
    assert fleet.hsops("deploy", "--revert", "--yes", "--host", "a").returncode == 0  # had it a moment before
    fleet.trouble("a", "echo no such luck >&2; exit 9")

    text = fleet.hsops("deploy", "--yes", "--host", "a")

    assert (text.returncode, fleet.applied()) == (1, ""), text.stdout + text.stderr
    assert "no such luck" in text.stderr and "lock" not in text.stderr, text.stderr


def test_a_later_failure_is_partial_and_the_command_it_names_finishes(fleet: Fleet) -> None:
    """The others are done; after the repair only the one that is left changes."""
    fleet.trouble("c", REFUSE)

    text = fleet.hsops("deploy", "--yes", "--group", "all")
    after = fleet.applied()
    fleet.well("c")
    rest = text.stdout.rstrip().rpartition("the rest: hsops ")[2]
    finished = fleet.hsops(*rest.split(), "--yes")

    assert (text.returncode, after) == (3, "ab")
    assert "c     absent" in text.stdout and "FAILED" in text.stdout
    assert rest == "deploy --host c" and (finished.returncode, fleet.applied()) == (0, "abc")


def test_a_host_that_is_down_is_named_and_the_others_go_on(fleet: Fleet) -> None:
    """Exit 3 when something was done; as the first host it stops all with its own code; --check tells as well."""
    checked = fleet.hsops("deploy", "--check", "--group", "part")
    code, envelope, _ = fleet.deploy("--group", "part")
    done = fleet.applied()
    first, second, _ = fleet.deploy("--host", "down", "--host", "c")

    assert checked.returncode == 5 and "2 hosts, the same plan: a, b" in checked.stdout
    assert "down: nothing listens on 127.0.0.1:1" in checked.stdout
    assert (code, done) == (3, "ab")
    told = {entry["host"]: (entry["outcome"], entry["before"]) for entry in envelope["data"]["hosts"]}
    assert told == {"a": ("changed", "absent"), "down": ("failed", "?"), "b": ("changed", "absent")}
    assert first == 5 and fleet.applied() == "ab"
    assert [entry["outcome"] for entry in second["data"]["hosts"]] == ["failed", "not-begun"]


def test_ctrl_c_ends_what_is_under_way_and_begins_nothing_more(fleet: Fleet, tmp_path: Path) -> None:
    """The second host waits in its change until Ctrl-C was heard; the third is never asked to change."""
    os.mkfifo(tmp_path / "here")
    os.mkfifo(tmp_path / "go")
    fleet.trouble("b", f"echo >{tmp_path}/here; read -r _ <{tmp_path}/go")
    running = fleet.start("deploy", "--yes", "--group", "all", "--parallel", "1")

    (tmp_path / "here").read_text()
    running.send_signal(signal.SIGINT)
    assert running.stderr and wait_for(running.stderr, "no other host begins; waiting for b")
    (tmp_path / "go").write_text("\n")
    out, _ = running.communicate(timeout=30)

    assert (running.returncode, fleet.applied()) == (130, "ab")
    states = {line.split()[0]: line for line in out.splitlines()[1:4]}
    assert "absent -> applied" in states["b"] and "not begun" in states["c"]
    assert "interrupted" in out and out.rstrip().endswith("the rest: hsops deploy --host c")


def test_a_second_ctrl_c_leaves_and_the_next_command_puts_it_right(fleet: Fleet, tmp_path: Path) -> None:
    """What is left under way is said to be so; the rerun that is named brings it to its end."""
    os.mkfifo(tmp_path / "here")
    fleet.trouble("b", f"echo >{tmp_path}/here; exec sleep 60")
    running = fleet.start("deploy", "--yes", "--json", "--group", "all", "--parallel", "1")

    (tmp_path / "here").read_text()
    running.send_signal(signal.SIGINT)
    assert running.stdout and wait_for(running.stdout, "waiting for b")
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=30)
    fleet.well("b")
    rerun = fleet.hsops("deploy", "--yes", "--group", "all")

    envelope = json.loads(out.splitlines()[-1])
    told = {entry["host"]: entry["outcome"] for entry in envelope["data"]["hosts"]}
    assert running.returncode == 130 and told == {"a": "changed", "b": "under-way", "c": "not-begun"}
    assert envelope["errors"][-1]["type"] == "Interrupted"
    assert (rerun.returncode, fleet.applied()) == (0, "abc")


@pytest.fixture
def scripted(fleet: Fleet) -> Iterator[Fleet]:
    """The hosts, and the patch ``hand``, a script."""
    (fleet.folder / "apply.py").write_text(APPLY.format(folder=str(fleet.folder)))
    yield fleet
    for mark in (fleet.folder / "ran", *fleet.folder.glob("?/broken"), *fleet.folder.glob("?/odd")):
        mark.unlink(missing_ok=True)
    assert fleet.hsops("deploy", "hand", "--revert", "--yes", "--group", "all").returncode == 0
    assert not hand(fleet)


def hand(fleet: Fleet) -> dict[str, str]:
    """The script's file, by host."""
    found = {name: list((fleet.folder / name / "venv").glob("lib/*/site-packages/sglang/hand.py")) for name in NAMES}
    return {name: paths[0].read_text() for name, paths in found.items() if paths}


def ran(fleet: Fleet) -> list[str]:
    """Where the script ran, in order, each with the hosts that had its file by then."""
    path = fleet.folder / "ran"
    return path.read_text().splitlines() if path.exists() else []


def test_a_script_runs_on_no_other_host_before_the_first_one_has_it(scripted: Fleet) -> None:
    """Not even on a copy; a second deploy runs it nowhere."""
    code, envelope, _ = scripted.deploy("hand", "--group", "all")
    first = ran(scripted)
    again = scripted.hsops("deploy", "hand", "--yes", "--group", "all")

    assert code == 0 and set(hand(scripted)) == set(NAMES), envelope
    assert first[0] == "a " and sorted(line[0] for line in first[1:]) == ["b", "c"]
    assert all("a" in line[1:] for line in first[1:])
    assert again.returncode == 0 and "nothing to do" in again.stdout and ran(scripted) == first


@pytest.mark.parametrize("words", [("--yes",), ("--check",)])
def test_a_script_that_fails_on_the_first_host_runs_nowhere_else(words: tuple[str, ...], scripted: Fleet) -> None:
    """With --check, too."""
    (scripted.folder / "a/broken").touch()

    done = scripted.hsops("deploy", "hand", "--group", "all", *words)

    assert done.returncode == 1 and "apply.py exited with 3" in done.stdout, done.stdout + done.stderr
    assert ran(scripted) == ["a "] and not hand(scripted)
    assert ("not begun" in done.stdout) == (words == ("--yes",))


def test_a_check_runs_a_script_on_all_hosts_when_it_went_well_on_the_first(scripted: Fleet) -> None:
    """The first host is the first that needs it."""
    assert scripted.hsops("deploy", "hand", "--yes", "--host", "a").returncode == 0

    checked = scripted.hsops("deploy", "hand", "--check", "--group", "all")

    assert checked.returncode == 0 and "2 hosts, the same plan: b, c" in checked.stdout
    assert ran(scripted) == ["a ", "b a", "c a"] and set(hand(scripted)) == {"a"}


def test_what_a_script_does_on_another_host_was_shown_or_is_not_done(scripted: Fleet) -> None:
    """Somebody agreed to what it does on the first host; --yes agrees to all."""
    (scripted.folder / "b/odd").touch()
    ours, its = os.openpty()
    os.write(ours, b"y\n")

    asked = scripted.start("deploy", "hand", "--group", "all", stdin=its)
    out, err = asked.communicate(timeout=60)
    there = hand(scripted)
    rest = scripted.hsops("deploy", "hand", "--yes", "--host", "b")
    os.close(ours)
    os.close(its)

    assert "Apply on 3 hosts, a first?" in err and "runs there on a copy once the first host has it" in err
    assert (asked.returncode, there) == (3, {"a": "x = 1\n", "c": "x = 1\n"}), out + err
    assert "b: hand does something else here than on a, of which it was shown" in out
    assert "hsops deploy hand --host b --diff" in out
    assert rest.returncode == 0 and hand(scripted)["b"] == "odd = 1\n"


def wait_for(lines: Any, said: str) -> bool:
    """Whether a line has ``said`` before the stream ends."""
    return any(said in line for line in lines)
