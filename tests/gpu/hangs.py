"""Real servers on GPUs that hang and die in known ways: what does ``hsops diagnose`` say, and when?

Run through ``tests/gpu/run.sh hangs FOLDER [SERVER...]``; on one GPU, without what takes two ranks; ``HSOPS_GPU_TP``
says how many there are instead of two: more than there are GPUs share the first (one_card.py). Writes ``hangs.json``
and the evidence of every verdict (``evidence.tar.xz``) into the folder given. A state is looked at again and again
until something is said. It ends after ``HSOPS_GPU_SECONDS`` (400), with what is known then.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hsops.diagnose.taxonomy import MOVING
from tests.gpu import deeds, drive, machine, one_card, rehearsal, steps
from tests.gpu.models import deepseek
from tests.hangs import control
from tests.hangs.cases import ALL, EVERY, LOOP, MISMATCH, SPINS, Case

CONFIG = rehearsal.config() if machine.LAB else deepseek(4, heads=16, width=512, dense=4096, vocabulary=8192)
MEMORY = ("cuda-oom-kv", "cuda-oom-weights", "cuda-oom-graph-capture")
REACHED_S, SAID_S, AGAIN_S = 150.0, 100.0, 2.0
SECONDS = float(os.environ.get(steps.SECONDS, "400"))  # for all of it
ALONE_S = 85.0  # of that, for the server that takes all memory, after the others
WELL = 8  # looks at a server that is well, idle and loaded each
LENGTHS = (100, 200, 400) if machine.LAB else (300, 2000, 8000)  # tokens of prompts that are a load
BEGAN = time.monotonic()
LOADED = "loaded"  # tag of a case: requests are under way
EVIDENCE = machine.HOME / "evidence"


def cases_of(gpus: int) -> dict[str, tuple[int, tuple[Case, ...]]]:
    """Name -> ranks and states. On one GPU a rank has no peer, and whoever spins is every rank: none is named then."""
    tp = machine.TP or min(gpus, 2)
    last, named, alone = tp - 1, tp - 1 if tp > 1 else None, tp == 1
    peers = () if alone else (Case("lock", "distributed", last, ("rank-never-joined",), last),)
    shared = () if alone else (Case("spin", "forward", ALL, EVERY),)
    mismatch = () if alone else (Case("all-reduce", "forward", 0, MISMATCH, ends=True),)
    stuck = (*EVERY, *LOOP) if alone else LOOP
    up = (
        *peers,
        *(Case("SIGSTOP", place, last, ("rank-stopped",), last) for place in ("weights", "kv-cache")),
        Case("spin", "warm-up", last, SPINS, named),
        Case("SIGKILL", "serving", last, ("rank-killed",), last, ends=True),
    )
    serving = (
        *(Case("SIGSTOP", "serving", last, ("rank-stopped",), last, tag=tag) for tag in ("", LOADED)),
        Case("spin", "forward", last, stuck, named),
        *([] if machine.LAB else [Case("kernel", "forward", last, stuck, named)]),
        *shared,
        *mismatch,
    )
    return {
        "up": (tp, up),
        "serving": (tp, serving),
        "good": (tp, ()),
        "killed": (tp, (Case("SIGKILL", "kv-cache", last, ("rank-killed",), last, ends=True),)),
        "port": (1, (Case("port", "kv-cache", 0, ("port-in-use",), ends=True),)),
        "path": (1, (Case("path", "start", 0, ("model-path-missing",), ends=True),)),
        "low": (1, (Case("little-memory", "start", 0, MEMORY, 0, ends=True),)),
        "memory": (1, (Case("memory", "start", 0, MEMORY, 0, ends=True),)),
    }


class Subject:
    """A server, what is done to it and what is said of it."""

    def __init__(self, name: str, tp: int, cases: tuple[Case, ...], **args: Any) -> None:
        self.name, self.tp, self.cases = name, tp, cases
        self.orders = machine.HOME / "orders" / name
        env = {k: v for k, v in os.environ.items() if k.startswith(("NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_"))}
        self.until_s = SECONDS - (0.0 if name == "memory" else ALONE_S)
        env[control.VARIABLE] = str(self.orders)
        if not machine.LAB and tp > _gpus():
            env |= {one_card.VARIABLE: "1", "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false"}
        self.server = machine.Server(name, CONFIG, tp=tp, args=args, env=env)
        self.told: list[dict[str, Any]] = []
        self.looks = 0  # at it when it was well

    def story(self) -> None:
        """All of its states; whatever breaks is told and costs this server's only."""
        self.orders.mkdir(parents=True, exist_ok=True)
        try:
            self._story()
        except BaseException:
            self.told.append({"case": "harness", "right": False, "summary": traceback.format_exc()[-1500:]})
        finally:
            for path in self.orders.iterdir():
                path.unlink(missing_ok=True)
            stopped = machine.hsops("stop", self.name, ok=(0, 1, 3, 7))["data"].get("stopped", [])
            self.told.append({"case": "stop", "right": True, "proof": [one["proof"] for one in stopped]})

    def _story(self) -> None:
        up = [case for case in self.cases if case.place in ("distributed", "weights", "kv-cache", "warm-up")]
        for case in up:
            held = case.deed.startswith("SIG") or case.deed == "port"
            self.order(case.at, case.who, "lock" if held else case.deed)
        began = time.monotonic()
        watched = bool(self.cases) and not up and self.cases[0].place != "start"
        words = ("launch", self.name, "--wait-healthy") if watched else ("launch", self.name)
        launched = machine.hsops(*words, ok=(0, 1, 3, 4, 5, 6, 7))
        self.told.append({"case": "launch", "right": True, "s": _since(began), "errors": launched["errors"]})
        if self.name == "path":  # hsops refuses to launch what is not there
            shutil.rmtree(machine.HOME / "models" / self.name)
        if not self.cases:
            self.followed()
        for case in self.cases:
            with self.state(case):
                self.judge(case)
            if not case.ends:
                self.fine("idle" if case.place in ("serving", "forward", "loop") else "")

    @contextmanager
    def state(self, case: Case) -> Iterator[None]:
        """Bring it into the state, and out of it."""
        with contextlib.ExitStack() as stack:
            if case.place in ("forward", "loop"):
                self.until(self.answers, "healthy")
                self.order(case.at, case.who, case.deed)
                threading.Thread(target=self.ask, daemon=True).start()
                self.until(lambda: self.inside(case), case.id)
            elif case.place == "serving":
                self.until(self.answers, "healthy")
                if case.tag == LOADED:
                    stack.enter_context(self.load())
            elif case.place != "start":
                self.until(lambda: self.inside(case), case.id)
            if case.deed == "port":
                stack.enter_context(self.port_taken())
                self.release(case.at)
            elif case.deed.startswith("SIG"):
                pid = int(self.run()["rank_pids"][f"TP{case.who}"])
                os.kill(pid, getattr(signal, case.deed))
                stack.callback(_go_on, pid)
            yield
        self.release(case.at)

    def judge(self, case: Case) -> None:
        """Looks until one is neither "on its way" nor "unknown", or the time is over; the last one is kept."""
        began, keep = time.monotonic(), EVIDENCE / f"{self.name}-{case.id}"
        looks = 0
        while True:
            seen = self.look("--save", str(keep))
            looks += 1
            if seen["class"] not in (*MOVING, "unknown") or time.monotonic() - began > min(SAID_S, self.left):
                break
            time.sleep(AGAIN_S)
        right = seen["class"] in case.classes and seen["rank"] == case.rank
        wanted = f"{' or '.join(case.classes)}{'' if case.rank is None else f' of TP{case.rank}'}"
        ranks = f"{self.tp} on {min(self.tp, _gpus())}"  # cards
        told = {"case": case.id, "right": right, "wanted": wanted, "after_s": _since(began), "looks": looks}
        self.tell({**told, "ranks": ranks, **seen})

    def followed(self) -> None:
        """A server that nothing is done to: looked at all the way up, then idle and loaded by turns."""
        began = time.monotonic()
        while not self.answers():
            self.well("starting")
            if time.monotonic() - began > min(REACHED_S, self.left):
                raise TimeoutError(f"{self.name}: not healthy after {time.monotonic() - began:.0f} s")
            time.sleep(AGAIN_S)
        self.tell({"case": "healthy", "right": True, "after_s": _since(began)})
        for _ in range(WELL):
            if self.left > 0:
                self.fine("idle")

    def fine(self, how: str) -> None:
        """It is well again; a look at it while it is idle or loaded must not say otherwise."""
        if not how:
            return
        self.until(self.answers, "healthy")
        self.well("idle")
        with self.load():
            self.well("loaded")

    def well(self, state: str) -> None:
        """One look at a server of which nothing bad may be said."""
        self.looks += 1
        seen = self.look("--save", str(EVIDENCE / f"{self.name}-{self.looks:02}-{state}"))
        self.tell({"case": state, "right": seen["class"] in MOVING, "wanted": "well", **seen})

    def tell(self, seen: dict[str, Any]) -> None:
        """Keep, and show."""
        self.told.append(seen)
        print(f"{self.name}: {json.dumps(seen)}", flush=True)

    def look(self, *words: str) -> dict[str, Any]:
        """One diagnosis."""
        data = machine.hsops("diagnose", self.name, *words, ok=tuple(range(9)))["data"]
        verdict = data["verdict"]
        return {**{k: verdict[k] for k in ("class", "rank", "confidence", "summary")}, "took_s": data.get("took_s")}

    def run(self) -> dict[str, Any]:
        """Its record."""
        runs: list[dict[str, Any]] = machine.hsops("status", ok=tuple(range(9)))["data"]["runs"]
        return next(run for run in runs if run["server"] == self.name)

    def answers(self) -> bool:
        """A token comes back."""
        try:
            drive._post(int(self.run()["port"]), drive._body([5, 6, 7], "plain"))
        except (OSError, RuntimeError):
            return False
        return True

    def ask(self) -> None:
        """One request; whatever becomes of it."""
        with contextlib.suppress(OSError, RuntimeError):
            drive._post(int(self.run()["port"]), drive._body(list(range(3, 303)), "plain"))

    @contextmanager
    def load(self) -> Iterator[None]:
        """Prompts of several lengths, one after another, until the context is left."""
        over, port = threading.Event(), int(self.run()["port"])

        def send(length: int) -> None:
            body = drive._body([3 + i % 200 for i in range(length)], "plain")
            with contextlib.suppress(OSError, RuntimeError):
                while not over.is_set():
                    drive._post(port, body)

        for length in LENGTHS:
            threading.Thread(target=send, args=(length,), daemon=True).start()
        time.sleep(2)
        try:
            yield
        finally:
            over.set()

    def order(self, place: str, who: int | str, deed: str) -> None:
        """Lay an order, whole."""
        part = self.orders / f".{place}"
        part.write_text("".join(f"TP{one} {deed}\n" for one in (range(self.tp) if who == ALL else (who,))))
        part.rename(self.orders / place)

    def release(self, place: str) -> None:
        """Take an order back."""
        (self.orders / place).unlink(missing_ok=True)

    def inside(self, case: Case) -> bool:
        """The rank is where it hangs, or all of them are."""
        paths = [self.orders / f"TP{who}.in" for who in (range(self.tp) if case.who == ALL else (case.who,))]
        return all(path.exists() and path.read_text() == case.at for path in paths)

    @contextmanager
    def port_taken(self) -> Iterator[None]:
        """Somebody else listens on its port."""
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", int(self.run()["port"])))
            other.listen()
            yield

    def until(self, happened: Callable[[], bool], what: str) -> None:
        """Wait for it."""
        began = time.monotonic()
        while not happened():
            if time.monotonic() - began > min(REACHED_S, self.left):
                raise TimeoutError(f"{self.name}: not {what} after {_since(began)} s")
            time.sleep(0.3)

    @property
    def left(self) -> float:
        """Seconds for this server."""
        return BEGAN + self.until_s - time.monotonic()


def main(out: Path, names: list[str]) -> None:
    """All servers, or those named, beside each other; the one that takes all memory afterwards."""
    machine.prepare()
    (site,) = (machine.PYTHON.parents[1] / "lib").glob("python*/site-packages")
    deeds.install(site)
    EVIDENCE.mkdir(exist_ok=True)
    small = {"mem-fraction-static": 0.3, "max-total-tokens": 65536, "disable-piecewise-cuda-graph": True}
    special = {
        "up": {**small, "load-format": "auto"},  # one is stopped while it reads them
        "low": {**small, "mem-fraction-static": 0.01},
        "memory": {**small, "mem-fraction-static": 0.999, "max-total-tokens": 1 << 30},
    }
    chosen = {name: of for name, of in cases_of(_gpus()).items() if not names or name in names}
    subjects = [Subject(name, *of, **special.get(name, small)) for name, of in chosen.items()]
    machine.write_inventory([one.server for one in subjects], [1, 2, 3], patches=())
    for name in chosen:
        if machine.LAB or name == "up":  # a GPU's other servers start with dummy weights
            machine.weigh(name)

    where, writing = steps.facts(), threading.Lock()

    def story(one: Subject) -> None:
        if one.left > 40:
            one.story()
        whole = {
            "kind": "hangs",
            "machine": where,
            "took_s": _since(BEGAN),
            "servers": {one.name: one.told for one in subjects},
        }
        with writing:
            (out / "hangs.json").write_text(json.dumps(whole, indent=1))

    for alone in (False, True):
        together = [one for one in subjects if (one.name == "memory") == alone]
        with ThreadPoolExecutor(len(subjects)) as pool:
            list(pool.map(story, together))
    with tarfile.open(out / "evidence.tar.xz", "w:xz") as archive:
        archive.add(EVIDENCE, "evidence")
        for path in machine.HOME.glob("state/runs/*/server.log"):
            archive.add(path, f"logs/{path.parent.name}.log")
    steps.record_smi(out / "smi.txt", "after")
    states = [seen for one in subjects for seen in one.told if "wanted" in seen]
    print(f"{sum(seen['right'] for seen in states)} of {len(states)} right", flush=True)


@functools.cache
def _gpus() -> int:
    if machine.LAB:
        return 1
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60, check=True)
    return len(listed.stdout.splitlines())


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
