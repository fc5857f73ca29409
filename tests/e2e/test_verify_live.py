"""``hsops verify --live`` on real servers: a right capture passes every check, each fault fails the one made for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.practice import MINUTES, Practice, practice
from tests.fidelity import naive

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(20 * MINUTES)]

ROOM = {"max-total-tokens": 8192, "max-running-requests": 16, "chunked-prefill-size": 3072}
KEYS = {"api-key": "k3y-of-all", "admin-api-key": "k3y-of-admins"}
IMITATED = "in-place-norms,deferred-allreduce"  # what only a GPU does; a right capture does not notice


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Practice]:
    """SGLang 0.5.9 at TP 2, with room for batches of more than 2,048 tokens, a GPU's two habits, and keys."""
    with practice(tmp_path_factory.mktemp("live"), sglang="0.5.9", tp=2) as made:
        made.change(
            "servers", "tiny", args={**ROOM, **KEYS, "sleep-on-idle": True}, env={"HSOPS_LAB_IMITATE": IMITATED}
        )
        made.do("deploy", "--yes")
        made.do("launch", "--wait-healthy", timeout=8 * MINUTES)
        yield made


def verify_live(lab: Practice) -> tuple[int, dict[str, Any]]:
    """Exit code, and the envelope's data: of a look for which the server put the requests together as it was meant to.

    How soon they reach it on a busy machine nobody can say; a check that they did not come to is not made.
    """
    for _ in range(5):
        done = lab.run("--json", "verify", "--live", timeout=5 * MINUTES)
        assert not any(key in done.stdout + done.stderr for key in KEYS.values())
        data = json.loads(done.stdout.splitlines()[-1])["data"]
        rows = {name: check["figures"].get("pass_rows", {}).get(name, []) for name, check in by_name(data).items()}
        if max(rows["batch"], default=0) > 2048 and len(rows["cut"]) == 2:
            break
    return done.returncode, data


def verify_strictly(lab: Practice) -> tuple[int, dict[str, Any]]:
    """As ``verify_live``, but every pair counts as one that failed by size: the lab's states are equal to the bit."""
    words = ["-i", str(lab.inventory), "--json", "verify", "--live"]
    code = (
        "import runpy, sys; from hsops.verify.live import bench, checks, second; "
        "bench.by_size = lambda *_: True; "
        "second.judge_pair = lambda name, *_: checks.Check(name, checks.FAIL, 'imagined'); "
        f"sys.argv[1:] = {words!r}; runpy.run_module('hsops', run_name='__main__')"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=5 * MINUTES, check=False)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])["data"]


def by_name(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The checks."""
    return {check["name"]: check for check in data["checks"]}


def test_a_right_capture_passes_every_check(lab: Practice, capsys: pytest.CaptureFixture[str]) -> None:
    """In float32, in passes on both sides of what is fused; and the host is as it was."""
    code, data = verify_live(lab)

    found = by_name(data)
    assert (code, {name: check["status"] for name, check in found.items()}) == (0, dict.fromkeys(found, "pass"))
    assert (data["pass"], data["tokens"], data["dtype"]) == (7, 300, "F32")
    assert found["batch"]["figures"]["pass_rows"]["batch"][0] > 2048
    assert len(found["cut"]["figures"]["pass_rows"]["cut"]) == 2
    assert not (lab.dumps / "check").exists()
    with capsys.disabled():
        print("".join(f"\n  {check['status']} {check['title']}: {check['reason']}" for check in found.values()), end="")


def test_states_that_differ_by_size_are_sent_again_with_log_probabilities(lab: Practice) -> None:
    """In the same company, P's alone; in float32 what log-probabilities are too coarse for stays a failure."""
    code, data = verify_strictly(lab)

    found = by_name(data)
    assert code == 1
    assert {name for name, check in found.items() if check["status"] == "fail"} == {"repeat", "batch", "cut"}, found
    for name in ("repeat", "batch", "cut"):
        server = found[name]["figures"]["server"]
        assert server["rows"] == 299, found[name]
        assert server["moved"] < server["rounding"], found[name]
        assert (server["lm_head"]["state"], server["lm_head"]["tokens"]) == ("final", 299)
        assert server["lm_head"]["median"] < server["rounding"]
        assert "too coarse" in found[name]["reason"]
    assert found["batch"]["figures"]["again_rows"][0] > 2048
    assert len(found["cut"]["figures"]["again_rows"]) == 2
    assert not (lab.dumps / "check").exists()


def test_ctrl_c_leaves_nothing(lab: Practice) -> None:
    """Interrupted in the middle of the requests: 130, and no check dump stays on the host."""
    command = [sys.executable, "-m", "hsops", "-i", str(lab.inventory), "verify", "--live"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert child.stderr is not None
    for line in child.stderr:
        if "0 / 7 steps" in line:
            child.send_signal(signal.SIGINT)
            break
    out, error = child.communicate(timeout=3 * MINUTES)

    assert child.returncode == 130, (out, error)
    assert not (lab.dumps / "check").exists()
    assert verify_live(lab)[0] == 0


@pytest.mark.skipif(not os.environ.get("HSOPS_MATRIX"), reason="a minute: make matrix runs it")
def test_a_model_that_computes_otherwise_in_large_passes_is_no_fault(
    lab: Practice, capsys: pytest.CaptureFixture[str]
) -> None:
    """The states are far apart, and so are the server's own log-probabilities, which the captured ones give."""
    naive.install(lab.site)
    lab.change("servers", "tiny", env={naive.OTHERWISE: "1"})
    lab.do("launch", "--replace", "--wait-healthy", timeout=8 * MINUTES)

    code, data = verify_live(lab)

    lab.change("servers", "tiny", env={naive.OTHERWISE: ""})
    found = by_name(data)
    assert (code, {name: check["status"] for name, check in found.items()}) == (0, dict.fromkeys(found, "pass"))
    for name in ("batch", "cut"):
        assert "the model's own doing" in found[name]["reason"]
        server = found[name]["figures"]["server"]
        assert server["moved"] > 10 * server["rounding"] > 10 * server["lm_head"]["median"]
        norms = {state["slot"]: (state["median"], state["norm"]) for state in found[name]["figures"]["states"]}
        assert all(0.8 < norm < 1.25 for _, norm in norms.values()), norms
    with capsys.disabled():
        print("".join(f"\n  {check['status']} {check['title']}: {check['reason']}" for check in found.values()), end="")


@pytest.mark.skipif(not os.environ.get("HSOPS_MATRIX"), reason="two minutes: make matrix runs it")
def test_wrong_captures_fail_the_checks_made_for_them(lab: Practice, capsys: pytest.CaptureFixture[str]) -> None:
    """The sum before the all-reduce, references instead of copies, and a last state without its residual."""
    naive.install(lab.site)
    kinds = f"{naive.PLAIN_ADD},{naive.NO_CLONE},{naive.NO_CLONE}"
    lab.change("servers", "tiny", env={naive.VARIABLE: kinds, naive.FINAL: "1"})
    lab.do("launch", "--replace", "--wait-healthy", timeout=8 * MINUTES)

    code, data = verify_live(lab)

    found = by_name(data)
    assert code == 1
    assert {name for name, check in found.items() if check["status"] == "fail"} == {
        "ranks",
        "distinct",
        "batch",
        "cut",
        "lm_head",
    }
    assert found["repeat"]["status"] == "pass"  # wrong in the same way twice
    assert "boundary 1" in found["batch"]["reason"]
    assert "boundary 3 equals boundary 5 in 300 of 300 rows of 'batch" in found["distinct"]["reason"]
    assert {state["slot"]: state["median"] > 0 for state in found["ranks"]["figures"]["states"]} == {
        "boundary 1": True,
        "boundary 3": False,
        "boundary 5": False,
        "final": False,
    }
    with capsys.disabled():
        print("".join(f"\n  {check['status']} {check['title']}: {check['reason']}" for check in found.values()), end="")
