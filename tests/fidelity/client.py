"""Prompts sent straight to a lab's server, past ``hsops extract`` and its care for disks."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.practice import Practice
from tests.fidelity.prompts import tokens

PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Client:
    """A healthy server of a lab.

    Args:
        lab: whose.
        base: ``http://127.0.0.1:PORT``.
    """

    lab: Practice
    base: str

    def post(self, name: str, count: int, *, timeout: float = PATIENCE_S) -> int:
        """Send one prompt of ``count`` tokens to be captured as ``name``; returns the status of the answer."""
        ids = tokens(random.Random(name), count)
        body = {"rid": f"hs-{name}", "input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        return httpx.post(f"{self.base}/generate", json=body, timeout=timeout, trust_env=False).status_code

    def start(self, pool: ThreadPoolExecutor, name: str, samples: int, count: int) -> list[Future[int]]:
        """Send ``<name>-0`` and so on, all at once."""
        return [pool.submit(self.post, f"{name}-{i}", count) for i in range(samples)]

    def healthy(self) -> bool:
        """/health answers 200: the model generated a token."""
        return httpx.get(f"{self.base}/health", timeout=60, trust_env=False).status_code == 200

    def lines(self, name: str) -> dict[str, dict[str, Any]]:
        """The manifest's last line of each sample whose id begins so."""
        return lines_of(self.lab.dumps, name)

    def settled(self, name: str, samples: int, patience: float = 120.0) -> dict[str, dict[str, Any]]:
        """Wait until every sample has its line."""
        wait_for(lambda: len(self.lines(name)) == samples, f"{samples} lines of {name}", patience)
        return self.lines(name)

    def parts(self) -> list[str]:
        """Dumps that are being written."""
        return [path.name for path in self.lab.dumps.glob("*.part")]

    def whole(self, name: str, samples: int, count: int = 30) -> bool:
        """New prompts become dumps: the lines say ok, the files are there and of the size they should be."""
        with ThreadPoolExecutor(samples) as pool:
            answers = [asked.result() for asked in self.start(pool, name, samples, count)]
        lines = self.settled(name, samples)
        return answers == [200] * samples and all(self.is_whole(line) for line in lines.values())

    def is_whole(self, line: dict[str, Any]) -> bool:
        """A line says ok and its file is as large as it says."""
        path = self.lab.dumps / f"{line['id']}.safetensors"
        return line["status"] == "ok" and path.exists() and path.stat().st_size == line["bytes"]


def lines_of(dumps: Path, name: str) -> dict[str, dict[str, Any]]:
    """The last line that a folder's manifest has of each sample whose id begins so."""
    path = dumps / "manifest.jsonl"
    text = path.read_text() if path.exists() else ""
    found = [json.loads(line) for line in text.splitlines()]
    return {line["id"]: line for line in found if line["id"].startswith(f"{name}-")}


def of(lab: Practice) -> Client:
    """The client of a server that ``hsops launch`` has brought up."""
    (run,) = (r for r in lab.do("status")["runs"] if r["phase"] == "running")
    return Client(lab, f"http://127.0.0.1:{run['port']}")


def wait_for(true: Callable[[], object], what: str, patience: float = 120.0) -> None:
    """Look until ``true``; the deadline is the failure."""
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen in {patience:g} s"
        time.sleep(0.002)


def reasons(lines: dict[str, dict[str, Any]]) -> Sequence[str]:
    """Why samples failed, of those that did."""
    return [line["reason"] for line in lines.values() if line["status"] == "failed"]
