"""One real server on which things are done, and the looks at it by ``hsops diagnose``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hsops.agent import procs
from hsops.lab import Lab, processes
from tests.e2e.cli import Cli
from tests.hangs import results
from tests.hangs.cases import ALL, FINE, LAST, Case

START_S, END_S, AGAIN_S = 900.0, 180.0, 2.0  # eight ranks on two cores take minutes
UP_S, SERVING_S = 150.0, 45.0  # for a verdict that is neither "on its way" nor "unknown", from when the state began
SLOW_S = 45.0  # how long a slow step is slow before it is looked at
RATE_S = 20.0
BODY = {"input_ids": list(range(3, 303)), "sampling_params": {"max_new_tokens": 16, "temperature": 0}}


class Patient:
    """A server of the lab, and what was said of its states (``told``: case -> what was seen).

    Args:
        hsops: launches and stops it; looker: diagnoses it, perhaps with fewer rights.
    """

    def __init__(self, hsops: Cli, looker: Cli, lab: Lab, orders: Path, tp: int) -> None:
        self.hsops, self.looker, self.lab, self.orders, self.tp = hsops, looker, lab, orders, tp
        self.told: dict[str, dict[str, Any]] = {}
        self.stopped: set[int] = set()

    def start(self, up: Sequence[Case], *, patched: bool, records: bool) -> list[dict[str, Any]]:
        """Launch it, through the states on its way up; gives the looks at it while it was well."""
        if patched:
            assert self.hsops("deploy", "--yes").returncode == 0
        for case in up:
            if case.deed in ("port", "SIGKILL", "SIGSTOP"):
                self.order(case.at, dict.fromkeys(self.who(case), "lock"))
            elif case.deed != "v1-patch":
                self.order(case.at, dict.fromkeys(self.who(case), case.deed))
        assert self.hsops("launch").returncode == 0
        looks = []
        for case in up:
            self.told[case.id] = self.on_the_way(case)
        if any(case.ends for case in up):
            return looks
        while not self.answers():
            looks += [self.look()] if records else []
            time.sleep(AGAIN_S)
            assert self.phase() == "running"
        return looks

    def on_the_way(self, case: Case) -> dict[str, Any]:
        """A state of the start: it is reached, looked at, left."""
        if case.deed in ("v1-patch", "raise"):
            wait(lambda: self.phase() != "running", START_S, case.id)
            return self.judge(case, UP_S)
        wait(lambda: self.inside(case) or self.gone(), START_S, case.id)
        assert self.inside(case), f"{case.id}: the server has ended by itself, see its log"
        with contextlib.ExitStack() as stack:
            if case.deed == "port":
                stack.enter_context(self.port_taken())
                self.release(case.at)
                wait(lambda: b"address already in use" in self.log().lower(), START_S, case.id)
            for who in self.who(case) if case.deed.startswith("SIG") else ():
                stack.enter_context(self.signalled(who, case.deed))
            if case.ends and case.deed == "SIGKILL":
                self.release(case.at)
                wait(lambda: self.phase() != "running", END_S, case.id)
            if case.classes == FINE:
                time.sleep(SLOW_S)
            seen = self.judge(case, UP_S)
        self.release(case.at)
        return seen

    def go_through(self, case: Case) -> dict[str, Any]:
        """A state of the server that serves."""
        if case.deed == "watch":
            return self.watched(case)
        with contextlib.ExitStack() as stack:
            if case.place == "dumps":
                stack.enter_context(over(self.lab.layout.dumps / "tiny", case.deed))
            elif case.deed.startswith("SIG"):
                for who in self.who(case):
                    stack.enter_context(self.signalled(who, case.deed))
            else:
                self.order(case.at, dict.fromkeys(self.who(case), case.deed))
                threading.Thread(target=self.ask, daemon=True).start()
            if case.ends:
                self.until_ended()
            elif case.place in ("forward", "loop", "request"):
                wait(lambda: self.inside(case), END_S, case.id)
            seen = self.judge(case, SERVING_S)
        self.release(case.at)
        return seen

    def judge(self, case: Case, seconds: float) -> dict[str, Any]:
        """Looks until one is neither "on its way" nor "unknown"; the last one is recorded."""
        began = time.monotonic()
        evidence = self.lab.layout.home / "evidence"
        evidence.mkdir(exist_ok=True)
        keep = str(evidence / f"{self.tp}-{case.id}")
        seen = self.look("--save", keep)
        waits = case.classes != FINE
        while waits and seen["class"] in (*FINE, "unknown") and time.monotonic() - began < seconds:
            time.sleep(AGAIN_S)
            seen = self.look("--save", keep)
        return self.note(case, seen, time.monotonic() - began)

    def note(self, case: Case, seen: dict[str, Any], after_s: float) -> dict[str, Any]:
        """Right or not? Into the page it goes."""
        rank = self.tp - 1 if case.rank == LAST else case.rank
        right = seen["class"] in case.classes and (case.classes == FINE or seen["rank"] == rank)
        wanted = f"{' or '.join(case.classes)}{'' if rank is None else f' of TP{rank}'}"
        kind = "fine" if case.classes == FINE else "hang"
        seen |= {"kind": kind, "right": right, "wanted": wanted, "after_s": round(after_s, 1)}
        if case.classes == FINE:
            seen["looks"] = [{name: seen[name] for name in ("class", "took_s", "left")}]
        print(f"TP {self.tp} {case.id}: {json.dumps(seen)}", flush=True)
        results.record(self.tp, case.id, seen)
        self.told[case.id] = seen
        return seen

    def watched(self, case: Case) -> dict[str, Any]:
        """It begins to spin while somebody watches, who looks by himself."""
        client = self.hsops.start("diagnose", "--watch", "--json")
        assert client.stdout
        next(line for line in client.stdout if "sign of life" in line)
        self.order(case.at, dict.fromkeys(self.who(case), "spin"))
        threading.Thread(target=self.ask, daemon=True).start()
        wait(lambda: self.inside(case), END_S, case.id)
        began = time.monotonic()
        *_, last = client.stdout
        assert client.wait(END_S) == 7
        seen = self.note(case, self.seen(json.loads(last)["data"]), time.monotonic() - began)
        self.release(case.at)
        return seen

    def look(self, *words: str) -> dict[str, Any]:
        """What ``hsops diagnose`` says now, and which threads it left traced or stopped."""
        return self.seen(self.looker.json("diagnose", *words, timeout=120)["data"])

    def seen(self, data: dict[str, Any]) -> dict[str, Any]:
        """A verdict, and how things stand after it."""
        verdict = data["verdict"]
        return {
            **{name: verdict[name] for name in ("class", "rank", "confidence", "summary")},
            "took_s": data["took_s"],
            "left": self.left(),
            "load": round(os.getloadavg()[0], 1),
            "cores": os.cpu_count(),
        }

    def left(self) -> list[str]:
        """Threads of the server that somebody traces, or that are stopped and were not stopped by us."""
        found = []
        for process in processes.running_from(self.lab.layout.python.parent):
            for path in Path(f"/proc/{process.pid}/task").glob("*/status"):
                with contextlib.suppress(OSError):
                    fields = dict(line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line)
                    held = fields["State"][0] in "Tt" and process.pid not in self.stopped
                    if held or fields["TracerPid"] != "0":
                        found.append(f"{process.title} {path}: {fields['State']} {fields['TracerPid']}")
        return found

    def look_well(self, times: int) -> list[dict[str, Any]]:
        """Looks at the healthy server, idle and loaded by turns."""
        looks = []
        for number in range(times):
            with self.busy() if number % 2 else contextlib.nullcontext():
                looks.append(self.look())
            print(f"TP {self.tp} well: {json.dumps(looks[-1])}", flush=True)
        return looks

    def rates(self) -> list[float]:
        """Requests a second of a busy server: before, during and after three diagnoses."""
        with self.busy() as count:
            found = []
            for look in (None, lambda: [self.look() for _ in range(3)], None):
                began, before = time.monotonic(), len(count)
                if look:
                    look()
                else:
                    time.sleep(RATE_S)
                found.append(round((len(count) - before) / (time.monotonic() - began), 2))
        return found

    @contextmanager
    def busy(self) -> Iterator[list[int]]:
        """Three clients that ask one request after another; gives a list that grows with each answer."""
        over, count = threading.Event(), list[int]()

        def client() -> None:
            while not over.is_set():
                count.append(self.ask())

        threads = [threading.Thread(target=client, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            wait(lambda: len(count) > 0, END_S, "an answer")
            yield count
        finally:
            over.set()
            for thread in threads:
                thread.join(END_S)

    def ask(self) -> int:
        """One request; its HTTP status, 0 for none."""
        data = json.dumps(BODY).encode()
        request = urllib.request.Request(self.url("/generate"), data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=END_S) as reply:
                return int(reply.status)
        except OSError:
            return 0

    def answers(self) -> bool:
        """/health says 200."""
        try:
            with urllib.request.urlopen(self.url("/health"), timeout=25) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def until_well(self) -> None:
        """It answers again."""
        wait(self.answers, END_S, "the server, healthy again")

    def until_ended(self) -> None:
        """Its run is over, or it has had time for that."""
        until = time.monotonic() + 30
        while self.phase() == "running" and time.monotonic() < until:
            time.sleep(0.5)

    def who(self, case: Case) -> list[str]:
        """The processes of a case, as ``control`` and the run's record name them."""
        if isinstance(case.who, str):
            return [case.who]
        numbers = {ALL: range(self.tp), LAST: [self.tp - 1]}.get(case.who, [case.who])
        return [f"TP{number}" for number in numbers]

    def order(self, place: str, deeds: dict[str, str]) -> None:
        """Lay an order, whole."""
        part = self.orders / f".{place}"
        part.write_text("".join(f"{who} {deed}\n" for who, deed in deeds.items()))
        part.rename(self.orders / place)

    def release(self, place: str) -> None:
        """Take an order back."""
        (self.orders / place).unlink(missing_ok=True)

    def clear(self) -> None:
        """Whatever is stopped or held goes on."""
        for path in self.orders.iterdir():
            path.unlink(missing_ok=True)
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def gone(self) -> bool:
        """launch_server is not there any more."""
        if not hasattr(self, "_pid"):
            self._pid = self.pid("launcher")
        found = procs.look(self._pid)
        return found is None or found.zombie

    def inside(self, case: Case) -> bool:
        """All of a case are where they hang."""
        for who in self.who(case):
            with contextlib.suppress(FileNotFoundError):
                if (self.orders / f"{who}.in").read_text() == case.at:
                    continue
            return False
        return True

    @contextmanager
    def signalled(self, who: str, name: str) -> Iterator[None]:
        """A process gets a signal; one that was stopped goes on afterwards."""
        pid = self.pid(who)
        os.kill(pid, getattr(signal, name))
        if name == "SIGSTOP":
            self.stopped.add(pid)
            wait(lambda: (found := procs.look(pid)) is not None and found.state == "T", END_S, f"{who} stopped")
        try:
            yield
        finally:
            if name == "SIGSTOP":
                os.kill(pid, signal.SIGCONT)
                self.stopped.discard(pid)

    @contextmanager
    def port_taken(self) -> Iterator[None]:
        """Somebody else listens on the server's port."""
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", self.run()["port"]))
            other.listen()
            yield

    def pid(self, who: str) -> int:
        """Of a rank, the detokenizer or the launcher."""
        run = self.run()
        if who == "launcher":
            return int(run["pid"])
        return int(run["rank_pids"][who])

    def run(self) -> dict[str, Any]:
        """The run, as ``hsops status`` has it."""
        found: dict[str, Any] = self.hsops.json("status")["data"]["runs"][0]
        return found

    def phase(self) -> str:
        """``running``, ``exited`` ..."""
        return str(self.run()["phase"])

    def log(self) -> bytes:
        """The server's log."""
        return Path(self.run()["log"]).read_bytes()

    def url(self, path: str) -> str:
        """An address of the server, which is on this machine."""
        if not hasattr(self, "_port"):
            self._port = self.run()["port"]
        return f"http://127.0.0.1:{self._port}{path}"


@contextmanager
def over(folder: Path, how: str) -> Iterator[None]:
    """A RAM disk over a folder: full, or not to be written."""
    options = "ro,size=1m" if how == "read-only" else "size=64k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "hsops-test", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def wait(happened: Callable[[], bool], seconds: float, what: str) -> None:
    """Until it has happened."""
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, what
        time.sleep(0.1)
