"""The main job as one line: hsops run playbooks/extract.yaml, on a real SGLang."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.running import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

PLAYBOOK = Path(__file__).parents[2] / "playbooks/extract.yaml"
SAMPLES = 12
DUMPS_MIB = 1  # of the host's file system: the samples of the drained job need three times as much


def hsops(inventory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run hsops on the lab, nobody at the keyboard."""
    command = [sys.executable, "-m", "hsops", "-i", str(inventory), *words]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=500, check=False)


def start(inventory: Path, *words: str) -> subprocess.Popen[str]:
    """The same, to be killed."""
    command = [sys.executable, "-m", "hsops", "-i", str(inventory), *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def on_the_host(inventory: Path) -> list[Path]:
    """Dumps that are there still."""
    return list((inventory.parent / "dumps").rglob("*.safetensors"))


def envelope(done: subprocess.CompletedProcess[str]) -> dict:
    """The JSON envelope, the last line of standard output."""
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """For what the tests share."""
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def lab_inventory(lab, folder):
    """The lab's inventory with a dump folder of its own, which is small: other tests leave samples in the lab's.

    Its server is quiet while nobody asks: what else runs has the cores.
    """
    whole, path = yaml.safe_load(lab.inventory.read_text()), folder / "inventory.yaml"
    dumps = folder / "dumps"
    dumps.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DUMPS_MIB}m", "hsops-test", str(dumps)], check=True)
    whole["hosts"]["lab"]["dumps"] = str(dumps)
    whole["servers"]["tiny"]["args"]["sleep-on-idle"] = True
    path.write_text(yaml.safe_dump(whole))
    yield path
    subprocess.run(["umount", "--lazy", str(dumps)], check=True)


@pytest.fixture(scope="module")
def prompts(lab_inventory, folder):
    """The prompts' file; the server is stopped and the patch reverted when the last test has ended."""
    rng, path = random.Random(3), folder / "prompts.jsonl"
    lines = [
        json.dumps({"id": f"playbook-{i}", "input_ids": [rng.randrange(3, 256) for _ in range(rng.randrange(1, 60))]})
        for i in range(SAMPLES)
    ]
    path.write_text("\n".join(lines) + "\n")
    yield path
    hsops(lab_inventory, "stop", "--grace", "1")
    hsops(lab_inventory, "deploy", "--revert", "--yes")


def job(prompts, to):
    """The words of the command."""
    return ["run", str(PLAYBOOK), "--yes", "--set", f"prompts={prompts}", "--set", f"to={to}"]


def test_a_malformed_prompts_file_is_told_before_anything_is_done(lab_inventory, tmp_path):
    """Not after the launch: the fault is named with its line, and no step is tried."""
    to = tmp_path / "hs"
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "a", "input_ids": [1]}\nnot json\n')

    done = hsops(lab_inventory, *job(bad, to))
    status = hsops(lab_inventory, "deploy", "--status", "--json")

    assert done.returncode == 4, done.stderr
    assert f"{bad}:2" in done.stderr
    assert "Traceback" not in done.stderr
    assert envelope(status)["data"]["patches"][0]["state"] == "absent"
    assert not to.exists()


def test_one_line_from_a_bare_host_to_verified_dumps_and_again(lab_inventory, prompts, tmp_path):
    """All five steps run; the same line again finds nothing to do; --check does nothing at all."""
    to = tmp_path / "hs"
    words = job(prompts, to)

    looked = hsops(lab_inventory, *words, "--check", "--json")
    first = hsops(lab_inventory, *words, "--json")
    again = hsops(lab_inventory, *words, "--json")
    for _ in range(2):  # where /health was not heard within a launch's few seconds it waits, rightly
        if "already healthy" not in again.stdout:
            again = hsops(lab_inventory, *words, "--json")

    assert [step["command"] for step in envelope(looked)["data"]["steps"]] == ["deploy", "launch", "extract", "verify"]
    assert first.returncode == 0, first.stdout[-3000:] + first.stderr[-3000:]
    steps = {step["command"]: step for step in envelope(first)["data"]["steps"]}
    assert steps["verify"]["data"]["samples"] == SAMPLES
    assert len(list(to.glob("*.safetensors"))) == SAMPLES
    assert steps["extract"]["data"]["fetch"]["evicted"] == SAMPLES
    assert on_the_host(lab_inventory) == []
    assert again.returncode == 0, again.stdout[-3000:]
    steps = {step["command"]: step for step in envelope(again)["data"]["steps"]}
    assert "nothing to do" in steps["deploy"]["summary"]
    assert "already healthy" in steps["launch"]["summary"]
    assert steps["extract"]["data"]["already"] == SAMPLES  # though the host has none of them any more
    assert steps["extract"]["data"]["fetch"]["fetched"] == 0


@pytest.mark.usefixtures("prompts")
def test_a_data_set_larger_than_the_host_comes_through_a_kill_of_the_client(lab_inventory, tmp_path):
    """Drained while it runs; the client is killed in the middle, and the same line ends it, with a word for people."""
    to, many, rng = tmp_path / "hs", tmp_path / "many.jsonl", random.Random(5)
    lines = [{"id": f"drained-{i}", "input_ids": [rng.randrange(3, 256) for _ in range(50)]} for i in range(60)]
    many.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first = start(lab_inventory, *job(many, to))
    wait_for(lambda: len(list(to.glob("*.safetensors"))) >= 10, "dumps that are here already", 400)
    first.kill()
    first.wait()

    done = hsops(lab_inventory, *job(many, to))

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    last = done.stdout.splitlines()[-1]
    assert last.startswith("60 samples · 3,000 tokens · ")
    assert "0 errors · every file verified        next: hsops export" in last
    assert len(list(to.glob("*.safetensors"))) == 60
    assert on_the_host(lab_inventory) == []


@pytest.mark.usefixtures("prompts")
def test_a_step_that_fails_ends_the_run_with_its_reason(lab_inventory, tmp_path):
    """A prompt longer than the server takes: nothing after extract is tried; the reason is told."""
    to = tmp_path / "hs"
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"id": "playbook-long", "input_ids": [7] * 600}) + "\n")

    done = hsops(lab_inventory, *job(long, to))

    assert done.returncode == 4, done.stderr
    assert f"{long}:1" in done.stdout + done.stderr
    assert "not tried" in done.stdout
    assert "Traceback" not in done.stderr
    assert not to.exists()
