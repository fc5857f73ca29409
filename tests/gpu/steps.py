"""A story in steps on a GPU machine: each is timed and told, one that fails costs itself only, and all end in time."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hsops.agent import doctor_gpus, probe_gpus
from tests.gpu import machine

RESERVE_S = 20.0  # of the whole time: for what must be done whatever happened
SECONDS = "HSOPS_GPU_SECONDS"
QUERIES = (
    f"--query-gpu={','.join(doctor_gpus.FIELDS.values())}",
    f"--query-gpu={probe_gpus._FIELDS}{probe_gpus._MORE}",
    f"--query-compute-apps={probe_gpus._APPS}",
)


@dataclass(frozen=True)
class Said:
    """What a command of hsops said: ``exit``, its envelope's ``data`` and ``errors``, its events, its seconds."""

    words: tuple[str, ...]
    exit: int
    data: dict[str, Any]
    errors: list[dict[str, Any]]
    events: list[dict[str, Any]]
    s: float

    def told(self) -> dict[str, Any]:
        """In short, as JSON values."""
        return {"command": " ".join(("hsops", *self.words)), "exit": self.exit, "s": self.s, "errors": self.errors[:3]}


class Steps:
    """What was done so far, in a file that is whole at every moment.

    Args:
        file: JSON.
        seconds: for all of it; ``HSOPS_GPU_SECONDS`` wins.
    """

    def __init__(self, file: Path, seconds: float) -> None:
        self.began, self.file = time.monotonic(), file
        self.seconds = float(os.environ.get(SECONDS, seconds))
        self.rows: list[dict[str, Any]] = []
        self.data: dict[str, Any] = {
            "kind": file.stem,
            "machine": facts(),
            "seconds_given": self.seconds,
            "steps": self.rows,
        }

    @property
    def left(self) -> float:
        """Seconds, less what is kept for the end."""
        return self.began + self.seconds - RESERVE_S - time.monotonic()

    def do(self, name: str, step: Callable[[dict[str, Any]], bool | None], *, need: float = 0.0) -> bool:
        """One step, if there is time for it. It writes its figures into the dictionary that it is given.

        Args:
            step: False when what was found is not right.
            need: seconds below which it is not begun.
        """
        row: dict[str, Any] = {"step": name, "ok": False, "at_s": round(time.monotonic() - self.began, 1), "s": 0.0}
        self.rows.append(row)
        began = time.monotonic()
        try:
            if self.left < need:
                row["not_begun"] = f"{self.left:.0f} s were left, it needs {need:.0f}"
            else:
                row["ok"] = step(row) is not False
        except (Exception, SystemExit) as error:
            row["problem"] = f"{type(error).__name__}: {error}"[:2000]
            traceback.print_exc()
        row["s"] = round(time.monotonic() - began, 1)
        short = {k: v for k, v in row.items() if k in ("step", "ok", "at_s", "s", "not_begun", "problem")}
        print(json.dumps(short), flush=True)
        self.write()
        return bool(row["ok"])

    def write(self) -> None:
        """What is known now."""
        self.data["took_s"] = round(time.monotonic() - self.began, 1)
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.data, indent=1))
        part.rename(self.file)

    def ask(self, row: dict[str, Any], *words: str, most: float = 200.0, last: bool = False) -> Said:
        """One command of hsops; it is told in the row.

        Args:
            most: seconds; less when less is left.
            last: may take what is kept for the end.
        """
        command = Command(words)
        said = command.wait(max(1.0, min(most, self.left + (RESERVE_S if last else 0.0))))
        row.setdefault("commands", []).append(said.told())
        return said


class Command:
    """A command of hsops that runs beside others; its JSON goes into a file, its messages where ours go."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self.words, self.began = words, time.monotonic()
        self._file = machine.HOME / f"said.{words[0]}.{time.monotonic_ns()}"
        with self._file.open("w") as out:
            self.process = subprocess.Popen(machine.command(*words), stdout=out, env=machine.environ())

    def wait(self, seconds: float) -> Said:
        """Its end; after so many seconds it is asked to end and said to have exit code 124."""
        late = False
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
            self.end()
        took = round(time.monotonic() - self.began, 2)
        events = []
        for line in self._file.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
        envelope = events.pop() if events and "schema" in events[-1] else {}
        code = 124 if late else self.process.returncode
        return Said(self.words, code, envelope.get("data") or {}, envelope.get("errors") or [], events, took)

    def end(self) -> None:
        """Ctrl-C, and after a while the end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(8)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(8)


def facts() -> dict[str, Any]:
    """Which machine this is, and when."""
    gpu = smi("--query-gpu=name,driver_version,memory.total").strip()
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": gpu or "none",
        "rehearsal": bool(machine.LAB),
        "cores": os.cpu_count(),
        "kernel": platform.release().partition("-")[0],  # what follows is the machine's maker's own
        "python": platform.python_version(),
        "sglang": machine.SGLANG if not machine.LAB else "the lab's",
        "disk_free": shutil.disk_usage("/tmp").free,
        "shm_free": shutil.disk_usage("/dev/shm").free,
    }


def smi(query: str) -> str:
    """One query of nvidia-smi as CSV without units; empty without it."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout or done.stderr


def gpu_mib() -> int | None:
    """In use on the first GPU; None without one."""
    said = smi("--query-gpu=memory.used").split()
    return int(said[0]) if said and said[0].isdigit() else None


def record_smi(file: Path, state: str) -> None:
    """Append what nvidia-smi says to the queries that hsops makes, for tests that read it later."""
    with file.open("a") as out:
        for query in QUERIES:
            out.write(f"## {state}: nvidia-smi {query} --format=csv,noheader,nounits\n{smi(query)}")


def keep_log(target: Path) -> None:
    """The newest server's log, where there is one."""
    logs = sorted(machine.HOME.glob("state/runs/*/server.log"), key=lambda path: path.stat().st_mtime)
    if logs:
        shutil.copy(logs[-1], target)
