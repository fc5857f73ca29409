"""What happens to a running capture when something happens to its folder or its threads: a real server at TP 2.

Each time only the samples that were touched fail, each with its reason; the server answers, and new prompts are whole.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.practice import MINUTES, practice
from tests.fidelity import client, killer
from tests.fidelity.client import Client, lines_of, reasons, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(20 * MINUTES)]

CHUNK = 16  # a prompt of 300 tokens comes in 19 passes: there is time to do something to it
LONG, SHORT = 300, 4
SAMPLES = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Deployed, launched, healthy."""
    folder = tmp_path_factory.mktemp("faults")
    with practice(folder, sglang="0.5.9", tp=2) as lab:
        killer.install(lab.site)
        args = {"chunked-prefill-size": CHUNK, "sleep-on-idle": True}
        lab.change("servers", "tiny", args=args, env={killer.VARIABLE: str(folder / "kill-thread")})
        lab.do("deploy", "--yes")
        lab.do("launch", "--wait-healthy", timeout=5 * MINUTES)
        yield client.of(lab)


@contextmanager
def over(folder: Path, options: str) -> Iterator[None]:
    """A RAM disk over a folder, as when its file system fills up or turns read-only."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "hsops-test", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_the_folder_is_deleted_under_it(server: Client) -> None:
    """Samples under way fail or are written anew; the folder comes back by itself."""
    for attempt in range(5):  # where this process was kept waiting until all was written, once more
        lines = _deleted(server, f"deleted{attempt}")
        if reasons(lines):
            break

    assert 1 <= len(reasons(lines)) < SAMPLES
    assert all("No such file" in reason for reason in reasons(lines))
    assert all(server.is_whole(line) for line in lines.values() if line["status"] == "ok")
    assert server.healthy() and server.whole("after-deleted", 3)


def _deleted(server: Client, series: str) -> dict[str, dict[str, Any]]:
    """What has become of samples whose folder is deleted while they are written, by the lines in the new one."""
    with ThreadPoolExecutor(SAMPLES) as pool:
        asked = server.start(pool, series, SAMPLES, LONG)
        wait_for(lambda: server.parts() or all(one.done() for one in asked), "a dump that is being written")
        gone = server.lab.dumps.rename(server.lab.dumps.with_name("gone"))  # at once: it is written to
        before = lines_of(gone, series)
        shutil.rmtree(gone)
        assert [one.result() for one in asked] == [200] * SAMPLES
    return server.settled(series, SAMPLES - len(before))


def test_the_folder_turns_read_only(server: Client) -> None:
    """Every sample of that time fails with the system's words; the manifest gets its lines as soon as it can."""
    with over(server.lab.dumps, "ro,size=1m"), ThreadPoolExecutor(SAMPLES) as pool:
        assert [one.result() for one in server.start(pool, "readonly", SAMPLES, SHORT)] == [200] * SAMPLES
        assert server.healthy()

    lines = server.settled("readonly", SAMPLES)

    assert len(reasons(lines)) == SAMPLES
    assert all("Read-only file system" in reason for reason in reasons(lines))
    assert server.whole("after-readonly", 3)


def test_the_file_system_is_full(server: Client) -> None:
    """A dump that does not fit fails when it begins; smaller ones still fit; with room again all do."""
    with over(server.lab.dumps, "size=128k"), ThreadPoolExecutor(SAMPLES) as pool:
        asked = server.start(pool, "large", 3, LONG) + server.start(pool, "small", 3, SHORT)
        assert [one.result() for one in asked] == [200] * 6
        large, small = server.settled("large", 3), server.settled("small", 3)
        assert server.healthy()
        subprocess.run(["mount", "-o", "remount,size=16m", str(server.lab.dumps)], check=True)
        assert server.whole("after-full", 3, LONG)

    assert len(reasons(large)) == 3 and all("No space left" in reason for reason in reasons(large))
    assert not reasons(small)


@pytest.mark.parametrize("names", [["hsops-dispatch"], [f"hsops-write-{i}" for i in range(4)]])
def test_a_thread_of_the_capture_is_killed(server: Client, names: list[str]) -> None:
    """A new one takes over; at most what was in hand is lost, and the log says so."""
    series = f"killed{len(names)}"
    order = Path(server.lab.inventory.parent / "kill-thread")
    with ThreadPoolExecutor(SAMPLES) as pool:
        asked = server.start(pool, series, SAMPLES, LONG)
        wait_for(lambda: server.parts() or all(one.done() for one in asked), "a dump that is being written")
        order.with_suffix(".new").write_text("\n".join(names))
        order.with_suffix(".new").rename(order)
        wait_for(lambda: not order.exists(), "the threads' death")
        assert [one.result() for one in asked] == [200] * SAMPLES

    lines = server.settled(series, SAMPLES)

    assert all("died" in reason for reason in reasons(lines))
    assert len(reasons(lines)) < SAMPLES
    assert all(server.is_whole(line) for line in lines.values() if line["status"] == "ok")
    log = server.lab.run("logs").stdout
    assert all(name in log for name in names if "write" not in name) and "died" in log
    assert server.healthy() and server.whole(f"after-{series}", 3)


@pytest.mark.skipif(not os.environ.get("HSOPS_MATRIX"), reason="a minute: make matrix runs it")
def test_a_second_server_has_no_use_of_the_folder(server: Client) -> None:
    """Launch starts none while somebody has it; ranks that find it taken say so, and launch fails with their reason."""
    lab = server.lab
    lab.do("stop")
    root = Path(__file__).parents[2]
    command = [lab.python, root / "tests/victims/claimer.py", lab.dumps]
    lab.do("launch")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={"PYTHONPATH": str(root)}, **pipes) as other:
        assert other.stdout and other.stdout.readline() == b"ready\n"  # seconds before a model is built
        came_second = lab.run("launch", "--wait-healthy", timeout=5 * MINUTES)
        lab.do("stop")
        refused = lab.run("launch")

    who = f"run 1130-other (pid {other.pid})"
    assert came_second.returncode == 7, came_second.stderr
    assert f"TP0 does not capture: {who} writes into {lab.dumps}: each server needs its own" in came_second.stderr
    assert refused.returncode == 1, refused.stderr
    assert f"{who} writes dumps into {lab.dumps}" in refused.stderr and "fix: end that server" in refused.stderr
    lab.do("launch", "--wait-healthy", timeout=5 * MINUTES)
    assert client.of(lab).healthy()
