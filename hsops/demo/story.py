"""The whole story on the lab, told by the commands a user would type.

Every act is hsops itself as a child process, its output passed through: what the demo shows is what a user gets.
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.core.errors import HsopsError, UnhealthyError
from hsops.core.events import Emit, Event
from hsops.demo import prompts

_PR_SET_PDEATHSIG = 1
FAULT = "busy-wait"
EXPECTED = "warmup-deadlock-busy-wait"
STALL_AFTER_S = 25
LONGEST_S = 1800.0  # one act: building the package set on a slow link is the longest


def end_with_parent() -> None:
    """In a child: be interrupted when the demo is killed, or the act would go on with nobody left to stop it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Act(Event):
    """A command of the story begins, ``typed`` as a user would. ``why`` is the sentence above it."""

    why: str
    typed: str


@dataclass(frozen=True, slots=True)
class Ending:
    """What the table at the end says. Times in seconds."""

    sglang: str
    tp: int
    samples: int
    tokens: int
    bytes: int
    errors: int
    healthy_s: float
    caught_s: float
    diagnosis: str
    confidence: str
    evidence: tuple[str, ...]
    left: int
    total_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the demo plays.

    Args:
        home: a lab of its own, removed at the end.
        sglang: version to show, or None for the lab's default.
        samples: how many prompts.
        aside: what the commands print goes to stderr: stdout is for JSON.
    """

    home: Path
    sglang: str | None
    samples: int
    aside: bool = False


class Teller:
    """Types the commands."""

    def __init__(self, stage: Stage, emit: Emit, now: Callable[[], float] = time.monotonic) -> None:
        self.stage, self._emit, self._now = stage, emit, now

    def lab(self, *words: str) -> list[str]:
        """``lab ...`` on the demo's own home."""
        version = ["--sglang", self.stage.sglang] if self.stage.sglang and words[0] == "up" else []
        return ["lab", *words, "--home", str(self.stage.home), *version]

    def act(self, why: str, words: list[str], *, expect: int = 0) -> float:
        """Run one command with its output passed through; returns its seconds.

        Raises:
            HsopsError: it ended with another code than ``expect``.
        """
        self._emit(Act(why, " ".join(["hsops", *words])))
        started = self._now()
        code = self.type(words)
        if code != expect:
            if code == 130:
                raise KeyboardInterrupt
            raise HsopsError(
                f"hsops {' '.join(words)} ended with {code}, expected {expect}",
                why="the story cannot go on from here",
                fix=f"hsops -i {self.inventory} status; remove it: hsops lab down --purge --home {self.stage.home}",
            )
        return self._now() - started

    def type(self, words: list[str], *, within: float = LONGEST_S) -> int:
        """Run one command with its output passed through; returns its exit code."""
        out = sys.stderr if self.stage.aside else None
        argv = self._argv(words)
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=out, check=False, timeout=within, preexec_fn=end_with_parent
        )
        return done.returncode

    def ask(self, words: list[str]) -> dict[str, Any]:
        """The ``data`` of one command's JSON envelope, nothing shown."""
        done = subprocess.run(
            self._argv([*words, "--json"]),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=300,
            preexec_fn=end_with_parent,
        )
        lines = done.stdout.splitlines()
        data: dict[str, Any] = json.loads(lines[-1])["data"] if lines else {}
        return data

    @property
    def inventory(self) -> Path:
        """The inventory that the lab wrote for itself."""
        return self.stage.home / "inventory.yaml"

    def _argv(self, words: list[str]) -> list[str]:
        place = [] if words[0] == "lab" else ["--inventory", str(self.inventory)]
        return [sys.executable, "-m", "hsops", *place, *words]


def tell(stage: Stage, emit: Emit) -> Ending:
    """Play all of it and clean up, also after a failure or Ctrl-C.

    Raises:
        HsopsError: an act did not end as it should.
    """
    teller = Teller(stage, emit)
    started = time.monotonic()
    if stage.home.exists():
        teller.act("An earlier demo left its lab behind.", teller.lab("down", "--purge"))
    with _curtain(teller):
        facts = _main_job(teller)
        caught_s, verdict = _bad_night(teller)
        teller.act("Clean up: no process stays.", teller.lab("down"))
        left = len(teller.ask(teller.lab("status")).get("processes", []))
    if left or verdict["class"] != EXPECTED:
        raise UnhealthyError(f"expected the verdict {EXPECTED} and no process left; got {verdict['class']} and {left}")
    return Ending(
        **facts,
        caught_s=caught_s,
        diagnosis=verdict["class"],
        confidence=verdict["confidence"],
        evidence=tuple(f"{line['source']}: {line['text']}" for line in verdict["evidence"]),
        left=left,
        total_s=time.monotonic() - started,
    )


def _main_job(teller: Teller) -> dict[str, Any]:
    """From nothing to verified dumps; the figures of the table."""
    home = teller.stage.home
    to, asked = str(home / "hs"), home / "prompts.jsonl"
    teller.act("A practice host: its own sshd, a real SGLang on the CPU.", teller.lab("up"))
    prompts.write(asked, teller.stage.samples)
    teller.act("Can it be reached, and is SGLang there?", ["doctor"])
    teller.act("Put the capture patch beside SGLang.", ["deploy", "--yes"])
    healthy_s = teller.act("Start the server and wait until it really answers.", ["launch", "--wait-healthy"])
    teller.act("One dump a prompt.", ["extract", str(asked)])
    teller.act("Bring them here, checksums compared.", ["fetch", "--to", to])
    teller.act("Every file against the manifest and the prompts.", ["verify", to, "--prompts", str(asked)])
    found = teller.ask(["verify", to, "--prompts", str(asked)])
    run = teller.ask(["status"])["runs"][0]
    teller.act("Done with this server.", ["stop"])
    return {
        "sglang": run["sglang"],
        "tp": run["tp"],
        "healthy_s": healthy_s,
        "errors": len(found["findings"]),
        **{key: found[key] for key in ("samples", "tokens", "bytes")},
    }


def _bad_night(teller: Teller) -> tuple[float, dict[str, Any]]:
    """The same server with a fault that hsops is not told of; seconds until it was caught, and the verdict."""
    teller.act("Now the bad night: every rank will spin after loading.", teller.lab("up", "--fault", FAULT))
    caught_s = teller.act(
        "Same command. It must not wait for ever, and must say why.",
        ["launch", "--wait-healthy", "--stall-after", str(STALL_AFTER_S)],
        expect=7,
    )
    verdict: dict[str, Any] = teller.ask(["diagnose"])["verdict"]
    teller.act("Stop it: the whole process tree and nothing else.", ["stop"])
    return caught_s, verdict


@contextmanager
def _curtain(teller: Teller) -> Iterator[None]:
    """Nothing of the demo outlives it: on success the lab is removed, else its processes end and its files stay."""
    try:
        yield
    except BaseException:
        teller.type(teller.lab("down"), within=120)
        raise
    teller.ask(teller.lab("down", "--purge"))
