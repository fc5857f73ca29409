"""A server over two hosts: started on both or on none, watched, looked at and stopped as one. Real sshd, stand-ins."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hsops.lab import sshd
from tests.hosts import Server, ServerFactory
from tests.practice_host import ENV, practice_host
from tests.running import marked, wait_for

NODE = Path(__file__).parents[1] / "victims/node.py"


@dataclass
class Two:
    """Two hosts, each with an sshd, a state and an SGLang of its own; ``servers`` of the inventory."""

    folder: Path
    sshds: dict[str, Server]

    def write(self, *, without: str = "", **changed: Any) -> None:
        """The inventory, with fields of the server ``big`` changed; ``without`` a host."""
        hosts = {
            name: {
                "ssh": one.spec.ssh,
                "ssh_config": one.spec.ssh_config,
                "python": str(self.folder / name / "venv/bin/python"),
                "state_dir": str(self.folder / name / "state"),
                "dumps": str(self.folder / name / "dumps"),
            }
            for name, one in self.sshds.items()
            if name != without
        }
        big = {"nodes": ["a", "b"], "model": "hub/none", "tp": 2, "port": "auto", "env": {"GLOO_SOCKET_IFNAME": "lo"}}
        whole = {"hosts": hosts, "groups": {"both": [*hosts]}, "servers": {"big": {**big, **changed}}}
        whole["default"] = "big"  # type: ignore[assignment]
        (self.folder / "inventory.yaml").write_text(json.dumps(whole))

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "hsops", "-i", str(self.folder / "inventory.yaml"), *words]

    def hsops(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        done = subprocess.run(
            self.argv(*words), env=ENV, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout,
            check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *words: str) -> dict[str, Any]:
        """The envelope."""
        envelope: dict[str, Any] = json.loads(self.hsops(*words, "--json").stdout.splitlines()[-1])
        return envelope

    def runs(self, host: str) -> list[dict[str, Any]]:
        """spec.json of each run there."""
        found = sorted((self.folder / host / "state/runs").glob("*/spec.json"))
        return [json.loads(path.read_text()) for path in found]

    def left(self) -> list[int]:
        """Processes of any run on either."""
        ids = {spec["id"] for host in self.sshds for spec in self.runs(host)}
        return [pid for run in ids for mark in (run, f"{run}/1") for pid in marked(mark)]


@pytest.fixture(scope="module")
def ground(new_server: ServerFactory, tmp_path_factory: pytest.TempPathFactory) -> Two:
    """The hosts."""
    folder = tmp_path_factory.mktemp("two")
    for name in "ab":
        site = practice_host(folder / name).site
        shutil.copy(NODE, site / "sglang/launch_server.py")
    return Two(folder, {name: new_server(name) for name in "ab"})


@pytest.fixture
def two(ground: Two) -> Iterator[Two]:
    """The hosts, with nothing running at the end."""
    ground.write()
    yield ground
    ground.write()
    stopped = ground.hsops("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert not ground.left()


def test_a_day_on_two_hosts(two: Two) -> None:
    """Launched healthy under one id, found again, shown as one run, diagnosed with its host, and stopped on both."""
    launched = two.json("launch", "--wait-healthy")
    again = two.hsops("launch", "--wait-healthy")
    shown, lines = two.json("status")["data"]["runs"], two.hsops("status").stdout.splitlines()
    (spec_a,), (spec_b,) = two.runs("a"), two.runs("b")
    of_b = two.hsops("logs", "--rank", "1").stdout
    os.kill(shown[0]["rank_pids"]["TP1"], signal.SIGSTOP)
    verdict = two.json("diagnose")["data"]["verdict"]
    bundle = two.folder / "bundle"
    two.hsops("diagnose", "--save", str(bundle))
    replayed = two.json("diagnose", "--bundle", str(bundle))["data"]["verdict"]
    stopped = two.json("stop")

    run = launched["data"]["run"]
    assert launched["ok"] and launched["data"]["healthy"]
    assert "already healthy" in again.stdout
    assert [one["id"] for one in shown] == [run["id"]] == [spec_a["id"]] and spec_b["id"] == run["id"]
    assert spec_a["argv"][-6:-1] == ["--nnodes", "2", "--node-rank", "0", "--dist-init-addr"]
    assert spec_b["argv"][-3:-1] == ["1", "--dist-init-addr"] and spec_a["argv"][-1] == spec_b["argv"][-1]
    assert [(part["host"], part["ranks"], part["phase"]) for part in shown[0]["parts"]] == [
        ("a", ["TP0"], "running"),
        ("b", ["TP1"], "running"),
    ]
    (line,) = [line for line in lines if line.startswith("big ")]  # others' orphans on this machine have lines too
    assert "a+b" in line and "TP 2/2" in line
    assert "TP1]" in of_b and "TP0]" not in of_b
    assert (verdict["class"], verdict["host"], verdict["rank"]) == ("rank-stopped", "b", 1)
    assert "TP1 on b" in verdict["summary"] and verdict["remedy"].startswith("on b: kill -CONT")
    assert replayed == {**verdict, "evidence": replayed["evidence"]}
    assert {one["host"] for one in stopped["data"]["stopped"]} == {"a", "b"} and stopped["data"]["left"] == 0
    assert not two.left()


def test_a_start_that_fails_on_one_host_leaves_none_on_the_other(two: Two) -> None:
    """The second host refuses after the first one has started: that is ended again, and the error names the host."""
    runs = two.folder / "b/state/runs"
    aside = runs.with_name("aside-runs")
    runs.rename(aside) if runs.exists() else None
    runs.parent.mkdir(parents=True, exist_ok=True)
    runs.write_text("no folder")
    try:
        done = two.hsops("launch")
    finally:
        runs.unlink()
        if aside.exists():
            aside.rename(runs)

    assert done.returncode == 1
    assert "b: " in done.stderr and "was ended again: no node runs without the others" in done.stderr
    assert not two.left()


def test_ctrl_c_between_two_starts_ends_both(two: Two) -> None:
    """Pressed while the second host is slow to start its part, which the first one has already."""
    slow = two.folder / "b/state/runs/.start.lock"
    slow.parent.mkdir(parents=True, exist_ok=True)
    before = len(two.runs("a"))
    with slow.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        client = subprocess.Popen(
            two.argv("launch"), env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda: len(two.runs("a")) > before, "the start of the first node")
        wait_for(lambda: waits_for(slow), "the second one's wait")
        client.send_signal(signal.SIGINT)
        fcntl.flock(held, fcntl.LOCK_UN)
    _, said = client.communicate(timeout=60)

    assert client.returncode == 130, said
    assert "was ended again: no node runs without the others" in said
    assert not two.left()


def test_a_client_that_dies_between_two_starts_leaves_a_run_that_is_told_as_half(two: Two) -> None:
    """Every command says that the second host has nothing of it, and what to type; --replace starts it whole."""
    slow = two.folder / "b/state/runs/.start.lock"
    slow.parent.mkdir(parents=True, exist_ok=True)
    before = len(two.runs("a"))
    with slow.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        client = subprocess.Popen(two.argv("launch"), env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: len(two.runs("a")) > before, "the start of the first node")
        wait_for(lambda: waits_for(slow), "the second one's wait")
        client.kill()
        client.wait(10)
        wait_for(lambda: not waits_for(slow), "the end of the second host's agent")
    rows, lines = two.json("status")["data"]["runs"], two.hsops("status").stdout  # of b an older run, too
    (shown,) = [row for row in rows if row["phase"] == "running"]
    refused = two.hsops("launch", "--wait-healthy")
    verdict = two.json("diagnose")["data"]["verdict"]
    of_b, errors = two.hsops("logs", "--rank", "1"), two.hsops("logs", "--errors")
    for host in ("a", "b"):  # the dead client's lock: it would expire after half a minute
        assert two.hsops("unlock", "--host", host, "--yes").returncode == 0
    done = two.json("--lock-wait", "60", "launch", "--wait-healthy", "--replace")

    half = f"nothing of run {shown['id']} is on b"
    assert [part["phase"] for part in shown["parts"]] == ["running", "absent"] and "nothing of it on b" in lines
    assert refused.returncode == 1 and "is incomplete: nothing of it is on b" in refused.stderr
    assert "hsops launch --replace --wait-healthy" in refused.stderr
    assert (verdict["class"], verdict["host"], verdict["rank"]) == ("rank-never-joined", "b", 1)
    assert half in verdict["summary"] and "launch --replace" in verdict["remedy"]
    assert of_b.returncode == 1 and half in of_b.stderr and "launch --replace" in of_b.stderr
    assert errors.returncode == 3 and "nothing went wrong in" in errors.stdout and half in errors.stdout
    assert done["ok"] and done["data"]["healthy"] and done["data"]["run"]["id"] != shown["id"]
    assert not [pid for mark in (shown["id"], f"{shown['id']}/1") for pid in marked(mark)]


def test_a_healthy_run_whose_record_is_gone_on_one_host_is_not_called_whole(two: Two) -> None:
    """The server answers, and yet a launch does not say that there is nothing to do."""
    assert two.json("launch", "--wait-healthy")["ok"]
    record = two.folder / "b/state/runs" / two.json("status")["data"]["runs"][0]["id"]
    record.rename(aside := two.folder / "aside-record")
    try:
        again = two.hsops("launch", "--wait-healthy")
    finally:
        aside.rename(record)

    assert again.returncode == 1 and "is incomplete: nothing of it is on b" in again.stderr
    assert "already healthy" in two.hsops("launch", "--wait-healthy").stdout


def test_stop_goes_where_the_run_is_not_where_the_inventory_names_it_today(two: Two) -> None:
    """A host that its server does not name any more is stopped too; one without a way to it is named: exit code 3."""
    two.hsops("launch")
    two.write(nodes=["a"], tp=1)
    stopped = two.json("stop")
    left = two.left()
    two.write()
    two.hsops("launch")
    two.write(nodes=["a"], tp=1, without="b")
    partly = two.hsops("stop")
    two.write(nodes=["a"], tp=1)
    finished = two.json("stop")

    assert stopped["ok"] and {one["host"] for one in stopped["data"]["stopped"]} == {"a", "b"}
    assert not left
    assert partly.returncode == 3 and "on a stopped" in partly.stdout
    assert (
        "b: run " in partly.stdout
        and "name b under hosts again; what is left there is ended by hsops stop --run" in partly.stdout
    )
    assert finished["ok"] and [one["host"] for one in finished["data"]["stopped"]] == ["b"]
    assert not two.left()


def test_a_launch_on_fewer_hosts_ends_what_it_replaces_on_the_others(two: Two) -> None:
    """Told with its host."""
    old = two.json("launch")["data"]["run"]["id"]
    two.write(nodes=["a"], tp=1)
    done = two.hsops("launch", "--replace")

    assert done.returncode == 0, done.stderr
    assert f"b: its part of run {old} was ended there too" in done.stdout + done.stderr
    assert not marked(old) and not marked(f"{old}/1")


def waits_for(path: Path) -> bool:
    """Somebody waits for the flock."""
    inode = path.stat().st_ino
    rows = [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]
    return any("->" in row for row in rows)


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
def test_a_host_that_does_not_reach_the_first_one_is_told_before_anything_starts(two: Two) -> None:
    """Its network is another: which addresses were tried, and why each failed."""
    inventory = json.loads((two.folder / "inventory.yaml").read_text())
    inventory["hosts"]["b"]["via"] = ["unshare", "-n"]
    (two.folder / "inventory.yaml").write_text(json.dumps(inventory))
    before = len(two.runs("a"))
    checked, launched, looked = two.hsops("launch", "--check"), two.hsops("launch"), two.json("doctor")

    assert checked.returncode == launched.returncode == 1
    assert "b: b does not reach a on port" in checked.stderr and "127.0.0.1: " in checked.stderr
    assert any("does not reach a" in one["what"] for one in looked["data"]["servers"]["big"])
    assert len(two.runs("a")) == before


def test_a_node_that_dies_is_named_with_its_host(two: Two) -> None:
    """The cause is told from the log of the host that has it; stop-on-failure ends the other node."""
    two.write(env={"GLOO_SOCKET_IFNAME": "lo", "NODE": "1:die"})
    done = two.json("launch", "--wait-healthy", "--stop-on-failure")

    (error,) = [one for one in done["errors"] if one["type"] == "UnhealthyError"]
    assert "no such device" in error["message"] and "on b" in error["why"]
    assert not two.left()
    assert "no such device" in two.hsops("logs", "--errors").stdout


def test_a_link_that_is_lost_is_waited_for(two: Two) -> None:
    """The watch says which node, goes on with the other, and ends well when the host is back: the server never knew."""
    go = two.folder / "go"
    two.write(env={"GLOO_SOCKET_IFNAME": "lo", "NODE": "1:hold", "GO": str(go)})
    client = subprocess.Popen(
        two.argv("launch", "--wait-healthy", "--json"), env=ENV, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout
    events = map(json.loads, client.stdout)
    reached = next(event for event in events if event.get("event") == "milestone-reached" and event["rank"] == "TP1")
    assert reached["host"] == "b"
    sshd.stop(two.sshds["b"].folder)
    try:
        lost = next(event for event in events if "trying again" in event.get("message", ""))
    finally:
        sshd.start(two.sshds["b"].folder, alias="b")
    go.touch()
    last = list(events)[-1]
    client.wait(60)

    assert lost["message"].startswith("node 1: ") and lost["host"] == "b"
    assert last["ok"] and last["data"]["healthy"]


def test_a_run_of_which_one_node_is_gone_is_no_run(two: Two) -> None:
    """status says which; a second launch wants --replace, and that starts both anew."""
    two.write(env={"GLOO_SOCKET_IFNAME": "lo", "NODE": "1:die-later"})
    two.hsops("launch")
    wait_for(lambda: two.json("status")["data"]["runs"][0]["parts"][1]["phase"] == "exited", "the end of node 1")
    (shown,) = two.json("status")["data"]["runs"]
    two.write()
    refused = two.hsops("launch", "--wait-healthy")
    done = two.json("launch", "--wait-healthy", "--replace")

    assert shown["phase"] == "running" and shown["helpers"]["node 1 on b"]["code"] == 3
    assert refused.returncode == 1 and "--replace" in refused.stderr
    assert done["ok"] and done["data"]["run"]["id"] != shown["id"]


def test_a_host_that_cannot_be_reached_hides_no_other(two: Two) -> None:
    """diagnose names the host and its ranks; stop ends the rest and exits with 3; a launch starts nothing."""
    assert two.json("launch", "--wait-healthy")["ok"]
    (shown,) = two.json("status")["data"]["runs"]
    sshd.stop(two.sshds["b"].folder)
    try:
        os.kill(shown["rank_pids"]["TP0"], signal.SIGSTOP)
        verdict = two.json("diagnose")["data"]["verdict"]
        stopped = two.hsops("stop")
        refused = two.hsops("launch")
    finally:
        sshd.start(two.sshds["b"].folder, alias="b")
    again = two.json("stop")

    assert verdict["class"] in ("rank-stopped", "node-unreachable")
    assert any(one["source"] == "could not" and one["text"].startswith("b: ") for one in verdict["evidence"])
    assert stopped.returncode == 3 and "on a stopped" in stopped.stdout and "b: " in stopped.stdout + stopped.stderr
    assert refused.returncode == 5
    assert [one["host"] for one in again["data"]["stopped"]] == ["b"]


def test_hosts_with_other_code_are_refused_before_anything_starts(two: Two) -> None:
    """Another SGLang on one host; a network interface that one host lacks."""
    version = next((two.folder / "b/venv/lib").glob("python3*")) / "site-packages/sglang/version.py"
    before, text = len(two.runs("a")), version.read_text()
    version.write_text('__version__ = "0.5.10"\n')
    try:
        unlike, looked = two.hsops("launch", "--check"), two.json("doctor")
    finally:
        version.write_text(text)
    two.write(env={"NCCL_SOCKET_IFNAME": "nope0"})
    lacks = two.hsops("launch", "--check")

    (finding,) = looked["data"]["servers"]["big"]
    assert finding["level"] == "blocker" and "SGLang is 0.5.9 on a, 0.5.10 on b" in finding["what"]
    assert unlike.returncode == 1 and "SGLang is 0.5.10 on b, and 0.5.9 on a" in unlike.stderr
    assert lacks.returncode == 4 and "a: the host has no network interface 'nope0'" in lacks.stderr
    assert "b: the host has no network interface" in lacks.stderr
    assert len(two.runs("a")) == before
