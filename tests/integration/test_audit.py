"""The audit log: every change is told, durably with the change, and whatever is done to the file shows."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hsops.agent import audit, lock
from hsops.agent.patch_site import Site
from hsops.agent.patch_store import Store
from hsops.agent.protocol import Refusal
from tests.integration.test_patch_engine import apply, edits, killed_at, revert
from tests.practice_host import practice_host

FOLLOWS = "does not follow: "
INSERTED = "a line was inserted, or the order changed"
Lines = list[dict[str, Any]]


@pytest.fixture
def state_dir(tmp_path: Path) -> str:
    """A state folder with five lines about nothing."""
    folder = str(tmp_path / "state")
    for i in range(5):
        audit.append(folder, {"action": "deploy", "n": i})
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A small tree to change."""
    root = tmp_path / "site-packages"
    (root / "sglang/srt/models").mkdir(parents=True)
    (root / "sglang/srt/models/model.py").write_bytes(b"class Model:\n    pass\n")
    return Site(str(root))


def faults(state_dir: str) -> list[tuple[int, str]]:
    """Where the chain breaks."""
    return [(one["line"], one["what"]) for one in audit.read({"state_dir": state_dir, "verify": True})["faults"]]


def lines(state_dir: str, limit: int = 100) -> Lines:
    """The log."""
    return list(audit.read({"state_dir": state_dir, "limit": limit})["lines"])


def edit(state_dir: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Do something to the file's lines."""
    path = Path(state_dir, "audit.jsonl")
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def test_what_is_done_to_a_host_is_told(tmp_path: Path) -> None:
    """Deploy, launch, stop, revert: who, what, which files from what to what, how it ended; the chain is whole."""
    host = practice_host(tmp_path)
    module = (host.site / "sglang/srt/models/registry.py").read_bytes()
    host.hsops("deploy", "--yes", check=True)
    run = host.agent().call(
        "run-start", server="tiny", model="none", tp=1, port=0, host="127.0.0.1", env={}, spec_hash="s", dump_dir="",
        patches={}, needs=[], argv=["/bin/sleep", "600"],
    )["run"]  # fmt: skip
    host.hsops("stop", check=True)
    host.hsops("deploy", "--yes", check=True)  # nothing to do: nothing to tell
    host.hsops("deploy", "--revert", "--yes", check=True)

    shown = host.hsops("audit", "--verify")
    told = json.loads(host.hsops("audit", "--json").stdout.splitlines()[-1])["data"]["hosts"]["here"]["lines"]

    deploy, launch, stop, back = told
    (registry,) = [one for one in deploy["files"] if one["path"].endswith("registry.py")]
    assert [one["action"] for one in told] == ["deploy", "launch", "stop", "revert"]
    assert deploy["who"].endswith(f"@{os.uname().nodename}") and deploy["command"] == "hsops deploy"
    assert (deploy["before"], back["after"], deploy["after"]) == (None, None, back["before"])
    assert registry["before"] == audit._hash(module) and registry["before"] != registry["after"]
    assert (launch["run"], stop["run"], stop["server"]) == (run["id"], run["id"], "tiny")
    assert {one["outcome"] for one in told} == {"done"}
    assert shown.returncode == 0 and shown.stdout.endswith("here: the chain of 4 lines is whole\n"), shown.stdout
    assert "deploy   hs-dump - -> " in shown.stdout and f"stop     tiny: run {run['id']}" in shown.stdout


def test_a_tampered_log_is_exit_1(tmp_path: Path) -> None:
    """With the line."""
    host = practice_host(tmp_path)
    host.hsops("deploy", "--yes", check=True)
    host.hsops("deploy", "--revert", "--yes", check=True)
    edit(str(host.state), lambda held: [held[0].replace(b'"done"', b'"none"'), *held[1:]])

    done = host.hsops("audit", "--verify", "--json")

    envelope = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 1 and envelope["errors"][0]["type"] == "BadDataError"
    assert envelope["data"]["hosts"]["here"]["faults"] == [{"line": 2, "what": "does not follow: line 1 was changed"}]


def other(line: bytes) -> bytes:
    """A line that says something else."""
    return line.replace(b'"deploy"', b'"revert"')


@pytest.mark.parametrize(
    "change,told",
    [
        (lambda held: held, []),
        (lambda held: [*held[:2], other(held[2]), *held[3:]], [(4, FOLLOWS + "line 3 was changed")]),
        (lambda held: [*held[:4], other(held[4])], [(5, "was changed")]),
        (lambda held: [*held[:1], *held[2:]], [(2, "missing before it: 1 line")]),
        (lambda held: held[1:], [(1, "missing before it: 1 line")]),
        (lambda held: held[:3], [(4, "the last 2 lines are missing")]),
        (lambda held: [], [(1, "the last 5 lines are missing")]),
        (lambda held: [*held[:2], b"what?\n", *held[2:]], [(3, "is not what hsops wrote")]),
        (lambda held: [*held[:2], held[1], *held[2:]], [(3, FOLLOWS + INSERTED)]),
        (lambda held: [held[0], held[2], held[1], *held[3:]], [(2, "missing before it: 1 line")]),
    ],
    ids=["nothing", "changed", "last changed", "removed", "first gone", "cut", "empty", "foreign", "twice", "order"],
)  # fmt: skip
def test_what_was_done_to_the_file_is_told(
    change: Callable[[list[bytes]], list[bytes]], told: list[tuple[int, str]], state_dir: str
) -> None:
    """A changed, removed, inserted or moved line, and a tail that is missing."""
    edit(state_dir, change)

    assert faults(state_dir)[: len(told) or None] == told


def test_what_is_missing_stays_missing_when_hsops_goes_on(state_dir: str) -> None:
    """The next line does not mend the chain; nor does it for a last line that was changed, or a file that is gone."""
    edit(state_dir, lambda held: held[:3])
    audit.append(state_dir, {"action": "revert"})
    cut = faults(state_dir)
    os.unlink(Path(state_dir, "audit.jsonl"))
    gone = faults(state_dir)
    audit.append(state_dir, {"action": "revert"})

    assert cut == [(4, "missing before it: 2 lines")]
    assert gone == [(0, "audit.jsonl is gone; it had 6 lines")]
    assert faults(state_dir) == [(1, "missing before it: 6 lines")]


def test_a_forged_line_at_the_end_is_not_built_upon(state_dir: str) -> None:
    """Also one that fits: the head does not know it, but it follows, as after a crash; one that does not fit shows."""
    edit(state_dir, lambda held: [*held, b'{"seq":6,"prev":"00","action":"deploy"}\n'])
    audit.append(state_dir, {"action": "revert"})

    assert faults(state_dir)[0] == (6, "does not follow: line 5 was changed")


@pytest.mark.parametrize("cut", [1, 7])
def test_a_line_that_a_crash_cut_short_goes(cut: int, state_dir: str) -> None:
    """And a line whose head a crash left out stays."""
    path, head = Path(state_dir, "audit.jsonl"), Path(state_dir, "audit.head")
    before = head.read_bytes()
    audit.append(state_dir, {"action": "whole", "n": 5})
    head.write_bytes(before)
    assert faults(state_dir) == []
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"seq":7,"prev":"'[: 2 * cut])

    audit.append(state_dir, {"action": "next"})

    assert faults(state_dir) == [] and [one["action"] for one in lines(state_dir, 2)] == ["whole", "next"]


def test_only_the_end_of_a_long_log_is_read(state_dir: str) -> None:
    """Lines longer than a block of reading too."""
    audit.append(state_dir, {"action": "long", "files": ["x" * 1000] * 200})
    audit.append(state_dir, {"action": "last"})

    assert [one["action"] for one in lines(state_dir, 2)] == ["long", "last"]
    assert [one["action"] for one in lines(state_dir, 1)] == ["last"]
    assert len(lines(state_dir)) == 7 and faults(state_dir) == []


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_killed_at_any_step_a_change_is_told_once(verb: str, site: Site, state_dir: str) -> None:
    """Undone, completed or done, by the next verb if need be; the chain is whole at every step."""
    steps, known = 0, len(lines(state_dir))
    outcomes = set()
    alive = False
    if verb == "revert":
        apply(site, state_dir, edits(site), "a")
        known += 1

    while not alive:
        steps += 1
        work = (
            (lambda: revert(site, state_dir))
            if verb == "revert"
            else (lambda: apply(site, state_dir, edits(site), "a"))
        )
        alive = not killed_at(steps, work)
        Store(state_dir, "p", site).recover()
        told, there = lines(state_dir)[known:], Store(state_dir, "p", site).record() is not None
        assert faults(state_dir) == [] and len(told) <= 1, f"step {steps}: {told}"
        outcomes |= {one["outcome"] for one in told}
        changed = there == (verb == "apply")
        assert changed == bool(told and told[0]["outcome"] in ("done", "completed")), f"step {steps}: {told}"
        known += len(told)
        if changed and not alive:  # back to where each round begins
            apply(site, state_dir, edits(site), "a") if verb == "revert" else revert(site, state_dir)
            known += 1

    assert outcomes == {"undone", "completed", "done"} and steps > 20


def test_a_holder_that_did_not_come_to_its_end_is_told(state_dir: str) -> None:
    """A launch that was killed between the server's start and its line, for example."""
    child = os.fork()
    if child == 0:
        with lock.held({"state_dir": state_dir, "lock": {"who": "mira@laptop", "what": "server tiny"}}):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    with lock.held({"state_dir": state_dir, "client": {"who": "tom@desk", "pid": 7}}):
        pass

    last = lines(state_dir)[-1]
    assert (last["action"], last["who"], last["of"]["who"]) == ("expired", "tom@desk", "mira@laptop")
    assert last["of"]["what"] == "server tiny" and faults(state_dir) == []


def test_many_writers_make_one_chain(state_dir: str) -> None:
    """Four processes, fifty lines each."""
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            code = 0
            try:
                for i in range(50):
                    audit.append(state_dir, {"action": "x", "n": i})
            except BaseException:
                code = 1
            os._exit(code)
        children.append(child)

    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert faults(state_dir) == [] and lines(state_dir, 1)[0]["seq"] == 205


@pytest.mark.parametrize("lines_meanwhile", [0, 3])
def test_who_waits_is_refused_only_when_nothing_is_written(
    state_dir: str, lines_meanwhile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a writer that stands still it waits a little, and names the file; the patience begins anew with each line."""
    path, clock, left = Path(state_dir, "audit.jsonl"), [0.0], [lines_meanwhile]

    def pause(_: float) -> None:
        clock[0] += audit._WAIT_S * 0.9
        if left[0]:
            left[0] -= 1
            with path.open("ab") as other:
                other.write(b"x")

    monkeypatch.setattr(audit, "time", SimpleNamespace(sleep=pause, monotonic=lambda: clock[0]))
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        with pytest.raises(Refusal, match=f"another process has {path} and does not go on"):
            audit.append(state_dir, {"action": "x"})

    assert clock[0] == pytest.approx(audit._WAIT_S * 0.9 * (lines_meanwhile + 2))
