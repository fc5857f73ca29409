"""Faults of a running capture that take minutes: an aborted prompt, a server that is stopped while it writes."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.practice import MINUTES, Practice, practice
from tests.fidelity import client, prompts
from tests.fidelity.client import Client, reasons, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(15 * MINUTES)]

CHUNK, LONG, SAMPLES = 16, 480, 6
IDLE_S = 120  # after that a sample whose rows stopped coming is given up


@pytest.fixture(params=["0.5.9", "0.5.23"])
def sglang(request: pytest.FixtureRequest) -> str:
    """One release of each way to capture."""
    return str(request.param)


@pytest.fixture
def lab(sglang: str, tmp_path: Path) -> Iterator[Practice]:
    """Deployed, launched, healthy."""
    with practice(tmp_path, sglang=sglang, tp=2) as up:
        up.change("servers", "tiny", args={"chunked-prefill-size": CHUNK, "sleep-on-idle": True})
        up.do("deploy", "--yes")
        up.do("launch", "--wait-healthy", timeout=8 * MINUTES)
        yield up


def test_a_prompt_is_aborted_and_a_server_is_stopped(lab: Practice, tmp_path: Path) -> None:
    """First one client goes away in the middle of its prompt, then the server ends in the middle of all."""
    aborted_in_the_middle(client.of(lab))
    stopped_in_the_middle(lab, tmp_path)


def aborted_in_the_middle(server: Client) -> None:
    """It fails with a reason once its rows stop coming, or SGLang computes it to its end; the others are whole."""
    with ThreadPoolExecutor(SAMPLES) as pool:
        pool.submit(server.post, "aborted-0", LONG)
        wait_for(server.parts, "its first rows")
        httpx.post(f"{server.base}/abort_request", json={"rid": "hs-aborted-0"}, timeout=60, trust_env=False)
        others = server.start(pool, "others", 4, LONG)
        assert [one.result() for one in others] == [200] * 4

    assert not reasons(server.settled("others", 4))
    assert server.healthy() and server.whole("after-aborted", 3)
    line = server.settled("aborted", 1, IDLE_S + 60)["aborted-0"]
    assert server.is_whole(line) or "no more rows came" in line["reason"]
    assert not server.parts()
    print(f"aborted in the middle: {line['status']}, {line['reason'] or 'SGLang computed it to its end'}")


def more_and_more(server: Client, number: int) -> None:
    """Prompts as long as anybody answers, so that something is under way whenever the stop comes."""
    with contextlib.suppress(httpx.HTTPError):
        for i in itertools.count():
            ids = prompts.tokens(random.Random(1000 * number + i), LONG)
            body = {"rid": f"hs-more.{number}-{i}", "input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
            httpx.post(f"{server.base}/generate", json=body, timeout=60, trust_env=False).raise_for_status()


def stopped_in_the_middle(lab: Practice, folder: Path) -> None:
    """What was begun is swept at the next start; the manifest's lines are true; a rerun brings the rest."""
    server = client.of(lab)
    wanted = {f"p{i}": prompts.tokens(random.Random(i), LONG) for i in range(SAMPLES)}
    asked = prompts.write(folder / "stopped.jsonl", wanted, "stopped")
    with ThreadPoolExecutor(2 * SAMPLES) as pool:
        for name, ids in wanted.items():
            body = {"rid": f"hs-stopped.{name}", "input_ids": ids, "sampling_params": {"max_new_tokens": 1}}
            pool.submit(httpx.post, f"{server.base}/generate", json=body, timeout=60, trust_env=False)
        for i in range(SAMPLES):
            pool.submit(more_and_more, server, i)
        wait_for(lambda: any("stopped" in part for part in server.parts()), "a dump that is being written")
        lab.do("stop")

    left = server.parts()
    lab.do("launch", "--wait-healthy", timeout=8 * MINUTES)
    wait_for(lambda: not client.of(lab).parts(), "the sweep")
    text = (lab.dumps / "manifest.jsonl").read_text()
    before = [json.loads(line) for line in text.splitlines()]
    data = lab.do("extract", str(asked))

    assert left, "the server was not stopped in the middle of a dump"
    assert text.endswith("\n") and all(server.is_whole(line) for line in before if line["status"] == "ok")
    assert data["samples"] == SAMPLES and not data["failures"]
    lab.do("fetch", "--to", str(folder / "hs"))
    lab.do("verify", str(folder / "hs"))
