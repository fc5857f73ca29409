"""Two servers on one host: what is told of one is not the other's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hsops.agent.probe import Probe

VICTIM = Path(__file__).parent.parent / "victims" / "ras.py"
# a Python whose first word is no path looks for its library in the folders above the current one
LAUNCHER = """
import os, subprocess, sys
how = {"executable": sys.executable, "stdout": subprocess.PIPE, "env": {**os.environ, "PYTHONHOME": sys.base_prefix}}
ranks = [subprocess.Popen([f"sglang::scheduler_TP{n}", *sys.argv[1:]], **how) for n in range(2)]
for rank in ranks:
    assert rank.stdout.readline(), "a rank does not listen"
print("up", flush=True)
for rank in ranks:
    rank.wait()
"""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str, int, str], int]]:
    """Starts a launcher with two ranks whose RAS gives an answer, and tells its pid; the port may be named to it."""
    started: list[subprocess.Popen[str]] = []

    def start(answer: str, port: int, address: str) -> int:
        text = tmp_path / answer
        text.write_text(answer)
        words = [sys.executable, "-c", LAUNCHER, str(VICTIM), str(port), str(text)]
        env = {**os.environ, "NCCL_RAS_ADDR": address}
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True))
        out = started[-1].stdout
        assert out and out.readline() == "up\n"
        return started[-1].pid

    yield start
    for launcher in started:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def told(launcher: int) -> tuple[str | None, list[str]]:
    """What NCCL said of a server, and why it could not."""
    seen = Probe({"pid": launcher, "budget_s": 20.0}).gather()
    return seen["ras"], [blind["message"] for blind in seen["could_not"] if blind["probe"] == "ras"]


def test_each_is_asked_by_itself_where_both_share_a_port(serve: Callable[[str, int, str], int]) -> None:
    """As with NCCL's own port, which all ranks of a user have together."""
    port = free_port()
    servers = {answer: serve(answer, port, f"localhost:{port}") for answer in ("one", "other")}

    assert {answer: told(launcher) for answer, launcher in servers.items()} == {
        "one": ("one", []),
        "other": ("other", []),
    }


def test_the_other_ones_port_is_not_read(serve: Callable[[str, int, str], int]) -> None:
    """A server whose ranks listen elsewhere, or not at all, is told without NCCL's word."""
    port = free_port()
    serve("other", port, f"localhost:{port}")
    one = serve("one", free_port(), f"localhost:{port}")

    said, why = told(one)

    assert said is None and [f"port {port} is pid " in word and "not of this server" in word for word in why] == [True]
