"""``make fetch-faults``: fetch is killed, cut off and lied to until it has had enough of it.

python -m tests.storm [--kills 1000] [--large 16] [--small 200] [--seed 1] [--minutes 60] [--resume]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.storm import results
from tests.storm.ground import MIB, Ground, ground
from tests.storm.harm import KINDS, client
from tests.storm.watch import Watcher

STREAMS = 4
CHUNK = 64 * MIB
COUNTS = ("kills", "pulls", "whole", "right", "torn", "early", "looks", "again", "too_much", "lost_streams",
          "bad_checksums", "evicted")  # fmt: skip


def main(words: list[str]) -> int:
    """Run, print, write the page; 1 when anything was wrong."""
    parser = argparse.ArgumentParser()
    for name, default in (("kills", 1000), ("large", 16), ("small", 200), ("seed", 1), ("minutes", 240)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--resume", action="store_true")
    asked = parser.parse_args(words)
    base = Path(tempfile.mkdtemp(prefix="hsops-storm-", dir="/dev/shm"))
    data = results.MEASURED.read() if asked.resume else {}
    data = {**dict.fromkeys(COUNTS, 0), "harms": {}, "exits": {}, "said": {}, **data}
    until = time.monotonic() + 60 * asked.minutes
    try:
        with ground(base, asked.large, asked.small) as place:
            storm = Storm(place, random.Random(asked.seed + data["kills"]), data)
            while data["kills"] < asked.kills and time.monotonic() < until and storm.good:
                storm.pull()
                results.MEASURED.write(data)
            storm.watcher.end()
            storm.note()
            results.MEASURED.write(data)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(results.page(data))
    return 0 if storm.good else 1


class Storm:
    """Pull after pull."""

    def __init__(self, place: Ground, dice: random.Random, data: dict[str, Any]) -> None:
        self.place, self.dice, self.data = place, dice, data
        self.watcher = Watcher(place.source, place.to, place.good)
        self._before = {key: data[key] for key in ("torn", "early", "looks")}
        self._flips = 0  # that no client has judged yet
        data["bytes"] = place.total

    @property
    def good(self) -> bool:
        """Nothing was wrong so far."""
        data = self.data
        return not (data["torn"] or data["early"] or data["too_much"]) and data["right"] == data["whole"]

    def pull(self) -> None:
        """Everything from nothing, through as many clients as it takes."""
        self.data["pulls"] += 1
        words = ["--streams", f"2..{STREAMS}", "--channel", self.dice.choice(("ssh", "auto"))]
        words += ["--evict"] if self.dice.random() < 0.5 else []
        while self._client(words):
            self.note()
            results.MEASURED.write(self.data)
        self.data["whole"] += 1
        if wrong := self.place.faults():
            print(f"wrong at the end: {wrong}", file=sys.stderr)
        self.data["right"] += not wrong
        self.note()
        with self.watcher.closed_eyes():
            self.place.refill()

    def note(self) -> None:
        """What the watcher saw."""
        seen = {"torn": len(self.watcher.torn), "early": len(self.watcher.early), "looks": self.watcher.looks}
        for key, count in seen.items():
            self.data[key] = self._before[key] + count
        self.data["load"] = round(os.getloadavg()[0], 1)

    def _client(self, words: list[str]) -> bool:
        """One client, harmed while it lives; whether another is needed."""
        missing, rewrites = self.place.missing(), self.place.rewrites
        process = self.place.start(*words)
        try:
            harms, kills = self._harm(process)
        finally:
            if process.poll() is None:  # Ctrl-C
                client(self.place, process, self.dice)
                process.wait(30)
        self._count(process.returncode, missing, harms, kills)
        return process.returncode != 0 or self.place.rewrites != rewrites  # what was rewritten late is the next one's

    def _harm(self, process: subprocess.Popen[str]) -> tuple[Counter[str], int]:
        """Until it ends: what happened, and how many processes were killed."""
        harms, kills = Counter[str](), 0
        while process.poll() is None:
            self._until_it_flows(process)
            try:
                process.wait(self.dice.random() ** 2 / 2)
            except subprocess.TimeoutExpired:
                kind = self.dice.choices(KINDS, [k.weight for k in KINDS])[0]
                killed = kind.do(self.place, process, self.dice)
                kills += killed
                harms[kind.name] += bool(killed) or kind.do.__name__ in ("cut", "rewrite", "flip", "full")
        return harms, kills

    def _until_it_flows(self, process: subprocess.Popen[str]) -> None:
        """Mostly: a start that is killed shows little, and takes most of the time."""
        until = time.monotonic() + (20 if self.dice.random() < 0.8 else 2 * self.dice.random())
        before = self.place.received()
        while process.poll() is None and self.place.received() == before and time.monotonic() < until:
            time.sleep(0.01)

    def _count(self, code: int, missing: int, harms: Counter[str], kills: int) -> None:
        data = self.data
        data["kills"] += kills
        data["harms"] = dict(Counter(data["harms"]) + harms)
        data["exits"][str(code)] = data["exits"].get(str(code), 0) + 1
        events = self.place.events()
        moved = max(
            (int(e["done"]) for e in events if e.get("event") == "progress" and e.get("task") == "fetch"), default=0
        )  # type: ignore[call-overload]
        again = max(0, moved - (missing - self.place.missing()))
        data["again"] += again
        ended = 0 if code in (0, 3) else STREAMS  # pieces under way are the client's memory's
        self._flips += harms["byte flipped"]  # its file may be continued, and only then judged, by a later client
        causes = Counter({**harms, "byte flipped": self._flips})
        allowed = (ended + sum(kind.chunks * causes[kind.name] for kind in KINDS)) * CHUNK
        self._flips = 0 if code == 0 else self._flips
        if again > allowed and not harms["source rewritten"]:
            data["too_much"] += 1
            print(f"{again:,} bytes again after {dict(harms)}, exit {code}", file=sys.stderr)
        if code not in (0, 1, 3, 5, -9):
            print((self.place.base / "errors").read_text()[-3000:], events[-1:], file=sys.stderr)
            raise SystemExit(f"exit {code}")
        for event in events:
            for error in event.get("errors") or ():  # type: ignore[attr-defined]
                words = f"{error['type']}: {error['message']}"
                known = next(
                    (kind for kind in ("SpaceError", "Trouble", "Unreachable", "Deadline") if kind in words), words
                )
                data["said"][known] = data["said"].get(known, 0) + 1
            if isinstance(found := event.get("data"), dict):
                for key in ("lost_streams", "bad_checksums", "evicted"):
                    data[key] += int(found.get(key, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
