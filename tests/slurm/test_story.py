"""A real SGLang, deployed, launched, extracted from and fetched, as jobs: ``make slurm``."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hsops.lab import Lab
from tests.e2e.cli import Cli
from tests.running import wait_for
from tests.slurm.results import record
from tests.slurm_cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
PROMPTS = 200

Site = Callable[..., Cli]


@pytest.fixture
def site(lab: Lab, slurm: Cluster, tmp_path: Path) -> Iterator[Site]:
    """A function that gives hsops on the lab as a login node: servers ``tiny`` and ``two``, each a job."""
    made: list[Cli] = []
    dumps = Path(tempfile.mkdtemp(prefix="dumps-", dir=lab.layout.home))  # not below /dev/shm: nodes have their own

    def site(**more: Any) -> Cli:
        content = yaml.safe_load(lab.inventory.read_text())
        content["hosts"]["lab"].update(dumps=str(dumps), state_dir=str(tmp_path / "state"))
        tiny = content["servers"]["tiny"]
        env = {**tiny["env"], "SGLANG_CPU_OMP_THREADS_BIND": "0"}
        wanted = {"partition": "gpu", "cpus": 2, "mem": "8000", "bin": str(slurm.bin), **more}
        job = {**tiny, "tp": 1, "env": env, "executor": "slurm", "slurm": wanted}
        content["servers"] = {"tiny": job, "two": job}
        path = tmp_path / f"inventory-{len(made)}.yaml"
        path.write_text(yaml.safe_dump(content))
        made.append(Cli(path))
        done = made[-1]("--yes", "deploy")
        assert done.returncode == 0, done.stdout + done.stderr
        return made[-1]

    yield site
    for cli in made[-1:]:
        for name in ("tiny", "two"):
            cli("stop", name)
        cli("--yes", "deploy", "--revert")
    shutil.rmtree(dumps)


def test_two_replicas_and_one_that_is_cancelled(site: Site, slurm: Cluster, tmp_path: Path) -> None:
    """launch, extract over both, one job cancelled in the middle, fetch from both, verify: not one sample is lost."""
    hsops, began = site(), time.monotonic()
    prompts = tmp_path / "p.jsonl"
    dice = random.Random(7)
    ids = [[dice.randrange(1, 250) for _ in range(dice.randrange(20, 120))] for _ in range(PROMPTS)]
    prompts.write_text("".join(json.dumps({"id": f"p{i}", "input_ids": one}) + "\n" for i, one in enumerate(ids)))

    launches = [hsops.start("launch", name, "--wait-healthy", "--timeout", "600") for name in ("tiny", "two")]
    for one in launches:
        out, err = one.communicate(timeout=900)
        assert one.returncode == 0, out + err
    healthy_s = time.monotonic() - began
    jobs = {run["server"]: run["job"] for run in hsops.json("status")["data"]["runs"]}
    began = time.monotonic()
    extract = hsops.start("--json", "extract", str(prompts), "--server", "tiny,two")
    wait_for(lambda: made(hsops, "two") >= 20, "the first dumps", 300)
    slurm.ask("scancel", jobs["two"]["id"])
    out, err = extract.communicate(timeout=900)
    done = json.loads(out.splitlines()[-1])
    extract_s = time.monotonic() - began
    fetching = time.monotonic()
    fetched = hsops("fetch", "--server", "tiny,two", "--to", str(tmp_path / "hs"), timeout=600)
    verified = hsops("verify", str(tmp_path / "hs"), timeout=600)
    again = hsops("fetch", "--server", "tiny,two", "--to", str(tmp_path / "hs"), timeout=600)

    assert extract.returncode == 0, out + err
    assert {jobs[name]["node"] for name in jobs} == set(slurm.nodes)
    rows = {row["server"]: row for row in done["data"]["servers"]}
    assert done["data"]["samples"] == PROMPTS and rows["tiny"]["samples"] + rows["two"]["samples"] == PROMPTS
    assert "was cancelled (CANCELLED)" in rows["two"]["error"], rows
    assert fetched.returncode == 0 and verified.returncode == 0, fetched.stderr + verified.stdout + verified.stderr
    assert again.returncode == 0
    record("`launch --wait-healthy` of two servers at once", "both healthy, on node1 and node2", healthy_s)
    said = f"{PROMPTS} of {PROMPTS} samples, {rows['two']['samples']} of it and {rows['tiny']['samples']} of the other"
    record("`extract` over both, one job cancelled in the middle", f"{said}; lost: {rows['two']['error']}", extract_s)
    record("`fetch` from both, `verify`, `fetch` again", "exit code 0 each", time.monotonic() - fetching)


def made(hsops: Cli, server: str) -> int:
    """Lines of the manifest of a server."""
    folder = yaml.safe_load(hsops.inventory.read_text())["hosts"]["lab"]["dumps"]
    path = Path(folder) / server / "manifest.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_time_limit_is_named(site: Site) -> None:
    """A minute is Slurm's shortest: whatever the server was doing, the cause is the limit, not a signal."""
    hsops, began = site(time="1"), time.monotonic()

    launched = hsops("launch", "tiny", "--wait-healthy", timeout=600)
    wait_for(lambda: run_of(hsops)["job"]["over"], "the limit", 240)
    run, verdict = run_of(hsops), hsops.json("diagnose", "tiny")["data"]["verdict"]
    status = hsops("status").stdout

    assert run["job"]["state"] == "TIMEOUT", run["job"]
    assert (run["phase"], verdict["class"]) == ("exited", "job-ended-by-scheduler")
    assert "reached its time limit of 00:01:00 (TIMEOUT)" in verdict["summary"]
    assert "reached its time limit" in status and "slurm.time" in verdict["remedy"]
    assert launched.returncode == 0 or "reached its time limit" in launched.stderr
    record("a time limit of one minute", f"`diagnose`: {verdict['summary']}", time.monotonic() - began)


def test_too_much_memory_is_named(site: Site) -> None:
    """Without control groups Slurm calls it FAILED 0:9; what slurmstepd says in the job's output tells."""
    hsops, began = site(mem="500"), time.monotonic()

    launched = hsops("launch", "tiny", "--wait-healthy", timeout=600)
    verdict = hsops.json("diagnose", "tiny")["data"]["verdict"]

    assert launched.returncode == 7, launched.stdout + launched.stderr
    assert "took more memory than it may" in launched.stderr and "raise servers.tiny.slurm.mem" in launched.stderr
    assert verdict["class"] == "job-ended-by-scheduler"
    record("a memory limit of 500 MB", f"`launch`: {verdict['summary']}", time.monotonic() - began)


def run_of(hsops: Cli) -> dict[str, Any]:
    """The newest run of ``tiny``."""
    runs = [run for run in hsops.json("status")["data"]["runs"] if run["server"] == "tiny"]
    found: dict[str, Any] = runs[0]
    return found
