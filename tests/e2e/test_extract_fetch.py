"""extract, fetch and verify on a real SGLang: done means that the manifest has the line."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hsops import lab as labs
from hsops.core.inventory_file import load
from hsops.core.prompt_files import read_prompts
from hsops.lab import Lab
from tests.e2e.cli import Cli
from tests.fetching import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Running:
    """A lab whose server is healthy.

    Args:
        sglang: its version.
        inventory: for ``hsops -i``.
        dumps: the server's dump folder.
        folder: for files of the test.
    """

    sglang: str
    inventory: Path
    dumps: Path
    folder: Path

    def with_second_server(self) -> Running:
        """The same with a server ``two`` of one rank beside it."""
        raw = yaml.safe_load(self.inventory.read_text())
        tiny = raw["servers"]["tiny"]
        env = {**tiny["env"], "SGLANG_CPU_OMP_THREADS_BIND": "0"}  # a processor a rank
        raw["servers"]["two"] = {**tiny, "tp": 1, "env": env}
        path = self.folder / "two.yaml"
        path.write_text(yaml.safe_dump(raw))
        return replace(self, inventory=path)

    @property
    def second(self) -> Running:
        """Where ``two`` writes."""
        return replace(self, dumps=self.dumps.parent / "two")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``hsops --json WORDS``."""
        command = [sys.executable, "-m", "hsops", "-i", str(self.inventory), "--json", *words]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=self.folder, text=True, **pipes
        )

    def do(self, *words: str, expect: int = 0) -> dict[str, Any]:
        """Run a command to its end; its envelope."""
        return ended(self.start(*words), expect)

    def prompts(self, name: str, count: int, *, seed: int = 0, tokens: tuple[int, int] = (20, 120)) -> Path:
        """A file of random prompts whose ids start with ``name``."""
        dice = random.Random(f"{name}{seed}")
        path = self.folder / f"{name}.jsonl"
        with path.open("w") as file:
            for i in range(count):
                ids = [dice.randrange(1, 250) for _ in range(dice.randrange(*tokens))]
                file.write(json.dumps({"id": f"{name}-{i}", "input_ids": ids}) + "\n")
        return path

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The manifest's lines of ids that start with ``name``."""
        path = self.dumps / "manifest.jsonl"
        text = path.read_text() if path.exists() else ""
        found = [json.loads(line) for line in text.splitlines()]
        return [line for line in found if line["id"].startswith(f"{name}-")]

    def wait_for(self, true: Callable[[], bool], what: str, patience: float = 120.0) -> None:
        """Look until ``true``; the deadline is the failure."""
        deadline = time.monotonic() + patience
        while not true():
            assert time.monotonic() < deadline, f"{what} did not happen in {patience:g} s"
            time.sleep(0.005)


def ended(process: subprocess.Popen[str], expect: int) -> dict[str, Any]:
    """The envelope of a command that must end with this code."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == expect, (process.returncode, out[-3000:], err[-3000:])
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


# the way around the server is the same for all releases: `make test` goes it on one, `make matrix` on the newest too
RELEASES = ("0.5.9", "0.5.23") if os.environ.get("HSOPS_MATRIX") else ("0.5.9",)


@pytest.fixture(scope="module", params=RELEASES)
def running(
    request: pytest.FixtureRequest, lab_for: Callable[[str], Lab], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """Deployed, launched and healthy, and quiet while nobody asks: what else runs has the cores. Stopped afterwards."""
    lab, folder = lab_for(request.param), tmp_path_factory.mktemp("extract")
    quiet = Cli(lab.inventory).changed(folder / "inventory.yaml", args={"sleep-on-idle": True})
    here = Running(lab.sglang, quiet.inventory, lab.layout.dumps / "tiny", folder)
    here.do("deploy", "--yes")
    here.do("launch", "--wait-healthy")
    yield here
    here.do("stop", "--grace", "1")
    here.do("deploy", "--revert", "--yes")


def test_prompts_become_dumps_that_are_right(running: Running) -> None:
    """extract, fetch, verify; each a second time says that there is nothing to do."""
    prompts, to = running.prompts("story", 24), str(running.folder / "to")

    first = running.do("extract", str(prompts))["data"]
    assert (first["samples"], first["already"], first["failures"]) == (24, 0, [])
    again = running.do("extract", str(prompts))["data"]
    assert (again["samples"], again["already"], again["run"]) == (24, 24, "")
    assert running.do("fetch", "--to", to)["data"]["samples"] >= 24
    assert running.do("fetch", "--to", to)["data"]["fetched"] == 0
    verified = running.do("verify", to, "--prompts", str(prompts))["data"]

    assert (verified["findings"], verified["compared"]) == ([], 24)
    assert Counter(line["id"] for line in running.lines("story")).most_common(1)[0][1] == 1
    assert all(line["token_hash"] for line in running.lines("story"))


def test_limit_takes_the_first_prompts(running: Running) -> None:
    """A try before the long run; the rest comes later."""
    prompts = str(running.prompts("limit", 6))

    assert running.do("extract", prompts, "--limit", "2")["data"]["samples"] == 2
    rest = running.do("extract", prompts)["data"]

    assert (rest["samples"], rest["already"]) == (6, 2)
    first = {line["id"] for line in running.lines("limit")[:2]}  # each by a writer of its own, in either order
    assert first == {"limit-0", "limit-1"}


@pytest.mark.parametrize("how, code", [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_client_that_ends_in_the_middle_is_continued(running: Running, how: signal.Signals, code: int) -> None:
    """What has its line stays done; the rerun sends the rest and nothing twice that was done."""
    name, prompts = interrupted(running, how, code)
    done = {line["id"] for line in running.lines(name)}
    data = running.do("extract", prompts)["data"]

    assert len(done) >= 5
    assert (data["samples"], data["failures"]) == (80, [])
    assert data["already"] >= len(done)
    assert all(len([x for x in running.lines(name) if x["id"] == i]) == 1 for i in done)


def interrupted(running: Running, how: signal.Signals, code: int) -> tuple[str, str]:
    """The series and the file of an extract that was under way when the signal came, and ended by it with ``code``.

    Where this process was kept waiting until all was done, it is tried anew.
    """
    for attempt in range(5):
        name = f"kill{how.value}x{attempt}"
        prompts = str(running.prompts(name, 80))
        process = running.start("extract", prompts, "--concurrency", "2")
        running.wait_for(lambda: len(running.lines(name)) >= 5, "five dumps")  # noqa: B023
        process.send_signal(how)
        _, err = process.communicate(timeout=120)
        if process.returncode != 0:
            assert process.returncode == code, err[-3000:]
            return name, prompts
    raise AssertionError(f"five extracts were done before {how.name} came, or did not mind it")


def test_an_id_with_a_dump_of_another_prompt_is_refused(running: Running) -> None:
    """Exit 4 with the prompt's line; nothing is sent, nothing is overwritten."""
    prompts = running.prompts("conflict", 3)
    running.do("extract", str(prompts))
    held = {file: file.stat().st_mtime_ns for file in running.dumps.glob("conflict-*")}

    other = running.prompts("conflict", 4, seed=1)
    errors = running.do("extract", str(other), expect=4)["errors"]

    assert [error["line"] for error in errors] == [1, 2, 3]
    assert "already" in errors[0]["message"]
    assert {file: file.stat().st_mtime_ns for file in running.dumps.glob("conflict-*")} == held
    assert len(running.lines("conflict")) == 3


def test_what_the_server_cannot_take_is_refused_before_it_is_sent(running: Running) -> None:
    """Too long, no such token: the place in the file, exit 4. A text that nobody can tokenise: why, exit 1."""
    good = '{"id": "refused-0", "input_ids": [1, 2]}\n'
    long_, text, beyond = (running.folder / f"{name}.jsonl" for name in ("long", "text", "beyond"))
    long_.write_text(good + json.dumps({"id": "refused-1", "input_ids": [1] * 600}) + "\n")
    text.write_text(good + '{"id": "refused-2", "text": "Hello"}\n')

    beyond.write_text(good + '{"id": "refused-3", "input_ids": [3, 256, 4]}\n')

    for path, message in (
        (long_, "600 tokens"),
        (beyond, "256 is beyond the model"),
    ):
        (error,) = running.do("extract", str(path), expect=4)["errors"]
        assert (error["line"], message in error["message"]) == (2, True)
    (error,) = running.do("extract", str(text), expect=1)["errors"]
    assert "the tokenizer of" in error["message"] and "cannot be used" in error["message"]

    assert running.lines("refused") == []


def test_a_malformed_prompts_file_sends_nothing(running: Running) -> None:
    """Malformed JSON at line 2: file:line:column, exit 4."""
    path = running.folder / "bad.jsonl"
    path.write_text('{"id": "bad-0", "input_ids": [1, 2]}\n{"id": "bad-1", "input_ids": [1, 2}\n')

    (error,) = running.do("extract", str(path), expect=4)["errors"]

    assert (error["file"], error["line"], error["column"]) == (str(path), 2, 35)
    assert running.lines("bad") == []


def test_a_sample_that_fails_is_tried_again_then_reported(running: Running) -> None:
    """Something stands in the way of its file: three attempts with their reason, exit 3, the others come."""
    prompts = running.prompts("fails", 4)
    (running.dumps / "fails-2.safetensors.part").mkdir(parents=True)

    envelope = running.do("extract", str(prompts), expect=3)

    (failure,) = envelope["data"]["failures"]
    assert (failure["id"], failure["line"], failure["attempts"]) == ("fails-2", 3, 3)
    assert "fails-2.safetensors.part" in failure["reason"]
    assert envelope["data"]["samples"] == 3
    (running.dumps / "fails-2.safetensors.part").rmdir()
    assert running.do("extract", str(prompts))["data"]["already"] == 3


def test_a_server_that_dies_in_the_middle_is_told_and_started_again(running: Running) -> None:
    """kill -9 of a rank: exit 7 with the verdict; --relaunch starts it, also when it dies anew; nothing comes twice."""
    prompts, victim = str(running.prompts("dies", 120)), second_rank(running)
    process = running.start("extract", prompts, "--concurrency", "2")
    running.wait_for(lambda: len(running.lines("dies")) >= 5, "five dumps")

    os.kill(victim, signal.SIGKILL)
    envelope = ended(process, 7)  # within minutes: a request to a server that has gone would wait for hours
    (error,) = envelope["errors"]

    assert error["type"] == "UnhealthyError"
    assert "hsops diagnose" in error["fix"]
    assert "are done" in error["why"]
    (row,) = envelope["data"]["servers"]
    assert row["verdict"]["class"] in error["why"] and row["verdict"]["evidence"]
    (error,) = running.do("extract", prompts, expect=7)["errors"]
    assert "hsops launch --wait-healthy" in error["fix"]
    process = running.start("extract", prompts, "--relaunch", "2", "--concurrency", "2")
    before = len(running.lines("dies"))
    victim = second_rank(running)
    running.wait_for(lambda: len(running.lines("dies")) >= before + 5, "five more", patience=300)
    os.kill(victim, signal.SIGKILL)
    data = ended(process, 0)["data"]
    assert (data["samples"], data["failures"], data["already"]) == (120, [], before)
    assert data["servers"][0]["relaunched"] == 2
    assert set(Counter(line["id"] for line in running.lines("dies")).values()) == {1}


def test_two_servers_share_a_list_and_one_dies(running: Running) -> None:
    """The other does the rest; each prompt once; one fetch brings both, and the folder verifies."""
    if running.sglang != "0.5.9":
        pytest.skip("nothing of it depends on the release")
    both = running.with_second_server()
    both.do("launch", "two", "--wait-healthy")
    prompts, to = str(both.prompts("share", 400)), str(both.folder / "share")
    (run,) = (r for r in both.do("status")["data"]["runs"] if r["server"] == "two" and r["phase"] == "running")
    process = both.start("extract", prompts, "-s", "tiny,two", "--concurrency", "2")
    second = both.second
    both.wait_for(lambda: len(second.lines("share")) >= 5 and len(both.lines("share")) >= 5, "five dumps of each")

    os.kill(run["pid"], signal.SIGKILL)
    data = ended(process, 0)["data"]

    one, two = data["servers"]
    assert (data["samples"], data["failures"]) == (400, [])
    assert "died" in two["error"] and (one["error"], one["samples"] + two["samples"]) == ("", 400)
    made = Counter(line["id"] for place in (both, second) for line in place.lines("share"))
    assert set(made.values()) == {1} and len(made) == 400
    assert both.do("extract", prompts, "-s", "tiny,two")["data"]["already"] == 400
    assert both.do("fetch", "-s", "tiny", "-s", "two", "--to", to)["data"]["samples"] >= 400
    verified = both.do("verify", to, "--prompts", prompts)["data"]
    assert (verified["findings"], verified["compared"]) == ([], 400)


def second_rank(running: Running) -> int:
    """The pid of TP1 of the server that runs, once its supervisor has seen it."""
    found: list[int] = []

    def seen() -> bool:
        for path in (running.dumps.parents[1] / "state/runs").glob("*/state.json"):
            state, spec = (json.loads(one.read_text()) for one in (path, path.with_name("spec.json")))
            if (spec["server"], state["phase"]) == ("tiny", "running"):
                found.extend(pid for name, pid in state["rank_pids"].items() if name == "TP1")
        return bool(found)

    running.wait_for(seen, "a second rank", patience=300)
    return found[0]


def test_a_full_dump_file_system_is_waited_for_before_it_is_full(running: Running) -> None:
    """Admitted by free bytes: it ends (exit 1) when nobody makes room, and continues beside a fetch that evicts."""
    if running.sglang != "0.5.9":
        pytest.skip("hsops decides this before any SGLang is asked: one release will do")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "hsops-test", str(running.dumps)], check=True)
    try:
        prompts = str(running.prompts("full", 40, tokens=(100, 101)))

        (error,) = running.do("extract", prompts, "--room-wait", "1", expect=1)["errors"]

        assert error["type"] == "SpaceError"
        assert {line["status"] for line in running.lines("full")} == {"ok"}
        assert 5 <= len(running.lines("full")) < 20
        extract = running.start("extract", prompts)
        running.do("fetch", "--to", str(running.folder / "full"), "--follow", "--evict", "--count", "40")
        assert ended(extract, 0)["data"]["samples"] == 40
        assert list(running.dumps.glob("*.safetensors")) == []
        assert len(list((running.folder / "full").glob("*.safetensors"))) == 40
    finally:
        subprocess.run(["umount", "--lazy", str(running.dumps)], check=True)  # the ranks have its manifest open


TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(200))]
made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
fast.model_max_length = 4096
turn = "{{ '<s> ' + m.content if m.role == 'user' else ' ' + m.content + ' </s>' }}"
fast.chat_template = "{% for m in messages %}" + turn + "{% endfor %}"
fast.save_pretrained(sys.argv[1])
"""


@pytest.fixture
def with_tokenizer(tmp_path: Path) -> Iterator[Running]:
    """A lab whose model has a tokenizer of words w0 ... w199, and whose server loads it."""
    lab = labs.up(tmp_path / "lab")
    model = Path(load(lab.inventory).servers["tiny"].model)
    subprocess.run([lab.layout.python, "-c", TOKENIZER, str(model)], check=True, capture_output=True)
    lines = lab.inventory.read_text().splitlines()
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("\n".join(line for line in lines if "skip-tokenizer-init" not in line))
    yield Running(lab.sglang, inventory, lab.layout.dumps / "tiny", tmp_path)
    labs.down(lab.layout.home, purge=True)


def test_text_and_messages_are_tokenised_over_there(with_tokenizer: Running) -> None:
    """By the server and by the model's tokenizer beside it: the dumps are of those ids, and the mask gets to export."""
    prompts, ids = with_tokenizer.folder / "words.jsonl", with_tokenizer.folder / "ids.jsonl"
    prompts.write_text('{"id": "words-0", "text": "w5 nope w7"}\n{"id": "words-1", "input_ids": [4, 5]}\n')
    chats, kept, to = (str(with_tokenizer.folder / name) for name in ("chats.jsonl", "kept.jsonl", "to"))
    messages = [{"role": "user", "content": "w5 w6"}, {"role": "assistant", "content": "w7 nope"}]
    Path(chats).write_text(json.dumps({"id": "chat-0", "messages": messages}) + "\n")
    ids.write_text('{"id": "words-0", "input_ids": [8, 0, 10]}\n{"id": "words-1", "input_ids": [4, 5]}\n')
    with_tokenizer.do("deploy", "--yes")
    with_tokenizer.do("launch", "--wait-healthy")

    first = with_tokenizer.do("extract", str(prompts))["data"]
    again = with_tokenizer.do("extract", str(prompts))["data"]
    as_ids = with_tokenizer.do("extract", str(ids))["data"]

    assert (first["samples"], first["already"]) == (2, 0)
    assert (again["already"], as_ids["already"]) == (2, 2)

    assert with_tokenizer.do("extract", chats, "--tokenized", kept)["data"]["samples"] == 1
    (line,) = Path(kept).read_text().splitlines()
    assert json.loads(line) == {"id": "chat-0", "input_ids": [1, 8, 9, 10, 0, 2], "loss_mask": [0, 0, 0, 1, 1, 1]}
    with_tokenizer.do("fetch", "--to", to)
    assert with_tokenizer.do("verify", to, "--prompts", kept)["data"]["compared"] == 1
    made = str(with_tokenizer.folder / "made")
    with_tokenizer.do("export", to, "--format", "speculators", "--prompts", kept, "--to", made)
    (row,) = read_prompts(made)
    assert (row.ids().tolist(), list(row.mask)) == ([1, 8, 9, 10, 0, 2], [0, 0, 0, 1, 1, 1])
    (error,) = with_tokenizer.do("export", to, "--format", "speculators", "--prompts", chats, "--to", made, expect=4)[
        "errors"
    ]
    assert "--tokenized" in error["fix"]
