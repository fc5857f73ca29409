"""A running server that has old code loaded is named after a deploy and after a revert, by both methods."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.practice_host import PracticeHost, practice_host


@pytest.fixture
def host(tmp_path: Path) -> PracticeHost:
    """A host whose SGLang can be hooked too."""
    host = practice_host(tmp_path)
    (host.site / "sglang/srt/server_args.py").write_text('parser.add_argument("--forward-hooks")\n')
    return host


def start(host: PracticeHost, server: str, patches: dict[str, str]) -> str:
    """A run that has ``patches`` loaded, as its spec says; its id."""
    run = host.agent().call(
        "run-start", server=server, model="none", tp=1, port=0, host="127.0.0.1", env={}, spec_hash="s", dump_dir="",
        patches=patches, needs=[], argv=["/bin/sleep", "600"],
    )["run"]  # fmt: skip
    return str(run["id"])


def told(host: PracticeHost, *words: str) -> dict[str, Any]:
    """The only patch of a command's answer."""
    done = host.hsops("deploy", *words, "--yes", "--json", check=True)
    (patch,) = json.loads(done.stdout.splitlines()[-1])["data"]["patches"]
    return dict(patch)


@pytest.mark.parametrize("method", ["source", "hook"])
def test_a_server_with_old_code_is_named(method: str, host: PracticeHost) -> None:
    """After another deploy, by a check, and after a revert, also when its server does not list the patch but reads the
    files; one that has the new code, or reads none of it, is not."""
    text = host.inventory.read_text().replace("boundaries:", f"method: {method}, boundaries:")
    host.inventory.write_text(text)
    first = told(host)["identity"]
    old, other = start(host, "tiny", {"hs-dump": first}), start(host, "bare", {})
    for i in range(21):  # a listing of runs ends at twenty
        spec = host.state / f"runs/1231-2359{i:02}-0000/spec.json"
        spec.parent.mkdir()
        spec.write_text(json.dumps({"server": "brief", "created": 1e11 + i, "patches": {}}))
    unchanged = told(host)
    host.inventory.write_text(text.replace("[1, 3]", "[2]"))
    try:
        check = told(host, "--check")
        second = told(host)
        shown = host.hsops("deploy").stdout
        new = start(host, "new", {"hs-dump": second["identity"]})
        same = told(host)
        back = host.hsops("deploy", "--revert", "--yes", "--json", check=True)
        (reverted,) = json.loads(back.stdout.splitlines()[-1])["data"]["patches"]
    finally:
        for run in (old, other, new):
            host.agent().call("run-stop", run=run, grace=0.0)

    stale = {"run": old, "server": "tiny", "patch": "hs-dump", "identity": first, "pid": None}
    reads = {"run": other, "server": "bare", "patch": "hs-dump", "identity": "", "pid": None}
    reader = [reads] * (method == "source")
    words = [f"run {old} of tiny still runs hs-dump {first}; relaunch: hsops launch tiny --replace"]
    if reader:
        said = f"run {other} of bare still runs the files from before hs-dump changed; relaunch: hsops launch bare"
        words.append(f"{said} --replace")
    assert unchanged["stale_runs"] == [] and unchanged["state"] == "applied"
    for told_of in (check, second, same):
        assert sorted(told_of["stale_runs"], key=lambda one: str(one["server"]), reverse=True) == [stale, *reader]
    assert second["done"] and sorted(second["warnings"]) == sorted(words) and all(line in shown for line in words)
    assert sorted(one["run"] for one in reverted["stale_runs"]) == sorted([old, new, *(one["run"] for one in reader)])


def test_it_is_said_to_people_after_the_change(host: PracticeHost) -> None:
    """Below the line that says what was done."""
    run = start(host, "tiny", {})
    spec = host.state / "runs" / run / "spec.json"
    spec.write_text(spec.read_text().replace('"patches": {}', '"patches": {"hs-dump": "0123456789ab"}'))
    try:
        done = host.hsops("deploy", "--yes", check=True).stdout
        back = host.hsops("deploy", "--revert", "--yes", check=True).stdout
    finally:
        host.agent().call("run-stop", run=run, grace=0.0)

    for out, word in ((done, " applied in "), (back, " reverted in ")):
        assert out.index(word) < out.index(f"run {run} of tiny still runs hs-dump 0123456789ab; relaunch"), out


# a server by hand: it says when it is there, and has a rank, as SGLang's launcher has
BY_HAND = """\
import subprocess, sys, time
rank = subprocess.Popen(["sglang::scheduler_TP0", "600"], executable="/bin/sleep")
print("ready", rank.pid, flush=True)
sys.stdin.read()
rank.kill()
"""


@contextmanager
def by_hand(*words: str, **env: str) -> Iterator[int]:
    """The pid of a server that is there; at the end it is gone with its rank."""
    told = {**os.environ, **env}
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=told)
    assert process.stdout and process.stdout.readline().startswith("ready")
    try:
        yield process.pid
    finally:
        process.communicate("", timeout=60)


def named(told_of: dict[str, Any]) -> list[int]:
    return [one["pid"] for one in told_of["stale_runs"]]


def test_a_server_that_was_started_by_hand_is_named(host: PracticeHost, tmp_path: Path) -> None:
    """Once, by its launcher; one that started after the change, one of another Python, and a client of it are not."""
    other = practice_host(tmp_path / "other")
    for one in (host, other):
        for name in ("launch_server", "bench_serving"):
            (one.site / f"sglang/{name}.py").write_text(BY_HAND)
    engine = tmp_path / "engine.py"
    engine.write_text(BY_HAND)
    module = ("-m", "sglang.launch_server", "--tp", "2")
    with (
        by_hand(host.python, *module) as first,
        by_hand(host.python, "-u", str(engine)) as second,
        by_hand(other.python, *module),
        by_hand(host.python, *module, HSOPS_RUN="0102-030405-abcd") as third,
    ):
        check, done = told(host, "--check"), told(host)
        with by_hand(host.python, *module):
            again, back = told(host), told(host, "--revert")

    assert named(check) == named(done) == named(again) == sorted((first, second, third))
    assert len(named(back)) == 4 and set(named(done)) < set(named(back))
    assert (
        f"process {first} (not started by hsops) still runs the files from before hs-dump changed; start it again"
        in done["warnings"]
    )
    assert any("(of run 0102-030405-abcd, which is another state_dir's" in line for line in done["warnings"])


def test_a_server_of_ours_is_named_as_a_run_only(host: PracticeHost) -> None:
    """Though its processes look the same."""
    (host.site / "sglang/launch_server.py").write_text(BY_HAND.replace("sys.stdin.read()", "time.sleep(600)"))
    run = host.agent().call(
        "run-start", server="tiny", model="none", tp=1, port=0, host="127.0.0.1", env={}, spec_hash="s", dump_dir="",
        patches={}, needs=[], argv=["{python}", "-m", "sglang.launch_server"],
    )["run"]  # fmt: skip
    try:
        wait_for(lambda: "ready" in Path(run["log"]).read_text())
        (stale,) = told(host)["stale_runs"]
    finally:
        host.agent().call("run-stop", run=run["id"], grace=0.0)

    assert (stale["run"], stale["pid"]) == (run["id"], None)


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)
