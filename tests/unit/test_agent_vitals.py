"""Signs of work without a log line, looked for on real processes and folders."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import gpus, jit_cache, procs
from hsops.agent.vitals import Vitals
from hsops.core.baseline import Baseline
from hsops.core.runs import parse_run
from hsops.launch.judgement import Silent
from hsops.launch.watch import Watch

READS = """
import os, sys
name, piece = sys.argv[1], int(sys.argv[2])
while True:
    sys.stdin.buffer.read(1)
    with open(name, "rb", buffering=0) as file:
        while file.read(piece):
            pass
    os.write(1, b".")
"""
CHATTERS = """
import os, sys
fd = os.eventfd(0, os.EFD_NONBLOCK)
while True:
    sys.stdin.buffer.read(1)
    for _ in range(200_000):
        os.eventfd_write(fd, 1)
        os.eventfd_read(fd)
    os.write(1, b".")
"""
SLEEPS = "import sys; sys.stdin.buffer.read()"


@contextmanager
def child(script: str, *words: str, executable: Path | str = sys.executable) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does one round for every byte of its input, and answers with a dot."""
    argv = [str(executable), "-I", "-S", "-c", script, *words]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, executable=executable)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def round_of(process: subprocess.Popen[bytes]) -> None:
    """One round, to its end."""
    assert process.stdin and process.stdout
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.stdout.read(1) == b"."


def looked(vitals: Vitals, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What is seen of a run whose server is ``process`` and its only rank, too."""
    return vitals.look(process.pid, {"TP0": process.pid}, mute_s=0.0)


def test_bulk_reads_of_cached_files_count_and_chatter_does_not(tmp_path: Path) -> None:
    """``rchar`` grows with both: weights that lie in the page cache, and the eventfd of a loop that waits."""
    weights = tmp_path / "weights"
    weights.write_bytes(os.urandom(1 << 20))
    vitals, chats = Vitals({}), Vitals({})

    with child(READS, str(weights), "65536") as reads, child(CHATTERS) as chatters:
        round_of(reads)
        round_of(chatters)
        looked(vitals, reads), looked(chats, chatters)
        before = procs.io(chatters.pid)["rchar"]
        round_of(reads)
        round_of(chatters)
        read, chat = looked(vitals, reads), looked(chats, chatters)
        grown = procs.io(chatters.pid)["rchar"] - before

    assert (1 << 20) - (64 << 10) <= read["cached"] <= (1 << 20) + (64 << 10)
    assert read["ranks"]["TP0"]["cached"] == read["cached"]
    assert grown >= 1_600_000 and chat["cached"] == 0


def test_a_compiler_below_the_server_is_told_with_its_source(tmp_path: Path) -> None:
    """Its name is that of its file; a stopped one is not at work."""
    nvcc = tmp_path / "nvcc"
    nvcc.symlink_to(Path(sys.executable).resolve())
    vitals = Vitals({})

    with child(SLEEPS, "-O3", "/x/batch_prefill.cu", executable=nvcc) as compiler:
        wait_until(lambda: bool(looked(vitals, compiler)["compilers"]))
        (seen,) = looked(vitals, compiler)["compilers"]
        os.kill(compiler.pid, 19)
        wait_until(lambda: not looked(vitals, compiler)["compilers"])

    assert (seen["name"], seen["what"]) == ("nvcc", "batch_prefill.cu")
    assert 0 <= seen["age_s"] < 60


def test_a_cache_that_grows_is_seen_and_named(tmp_path: Path) -> None:
    """Files and bytes below the folder that the server's environment names."""
    cache = tmp_path / "triton"
    (cache / "a").mkdir(parents=True)
    (cache / "a/kernel.cubin").write_bytes(b"12345")
    (cache / "away").symlink_to("/")

    before = jit_cache.measure(str(cache))
    (cache / "a/other.cubin").write_bytes(b"123")

    assert (before, jit_cache.measure(str(cache))) == ((2, 6), (3, 9))
    assert jit_cache.measure(str(tmp_path / "nothing")) == (0, 0)


@pytest.mark.parametrize("ours,grown", [(0, 0), (100, 0), (1000, 1)])
def test_growth_is_ours_only_where_we_wrote(tmp_path: Path, ours: int, grown: int) -> None:
    """The caches are shared with every server of the user. Nobody waits for a look."""
    found = jit_cache.Caches([str(tmp_path)], every_s=0.02)

    def seen(written: int, size: tuple[int, int]) -> bool:
        found.look(written)
        return found._known.get(str(tmp_path)) == size

    wait_until(lambda: seen(0, (0, 0)))
    (tmp_path / "kernel.tmp").write_bytes(b"x" * 1000)
    wait_until(lambda: seen(ours, (1, 1000)))

    assert found.look(ours) == {"grown": grown, "where": str(tmp_path) if grown else ""}


@pytest.mark.parametrize(
    "env,folder",
    [
        ({}, "/h/.cache/flashinfer"),
        ({"FLASHINFER_WORKSPACE_BASE": "/w"}, "/w/.cache/flashinfer"),
        ({}, "/h/.triton/cache"),
        ({"TRITON_HOME": "/t"}, "/t/.triton/cache"),
        ({"TRITON_CACHE_DIR": "~/tc"}, "/h/tc"),
        ({}, "/h/.cache/deep_gemm"),
        ({"SGLANG_DG_CACHE_DIR": "/s", "DG_JIT_CACHE_DIR": "/d"}, "/s"),
        ({"DG_JIT_CACHE_DIR": "/d"}, "/d"),
        ({"TVM_FFI_CACHE_DIR": "/f"}, "/f"),
        ({"TMPDIR": "/scratch"}, "/scratch/torchinductor_u"),
        ({"TORCHINDUCTOR_CACHE_DIR": "/i"}, "/i"),
    ],
)
def test_where_caches_lie(env: dict[str, str], folder: str) -> None:
    """By default in the home folder of the server's user; variables move them."""
    assert folder in jit_cache.roots({"HOME": "/h", "USER": "u", **env})


def test_a_uid_without_a_name_has_caches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """``docker exec -u 1234``: no entry in passwd, no USER; Python 3.13 raises another error than those before."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)

    assert f"/tmp/torchinductor_{os.getuid()}" in jit_cache.roots({"TMPDIR": "/tmp"})


LOADS = """
import os, sys
while True:
    sys.stdin.buffer.read(1)
    tensor = bytearray(64 << 20)
    del tensor
    os.write(1, b".")
"""


@pytest.mark.parametrize(
    "script,works", [(READS, True), (LOADS, True), (CHATTERS, False)], ids=["reads", "allocates", "chatters"]
)
def test_what_a_process_does_in_a_silent_stretch_decides(tmp_path: Path, script: str, works: bool) -> None:
    """From /proc to the judgement: a small read or tensors that come and go are work, a busy loop's chatter is not."""
    piece = tmp_path / "piece"
    piece.write_bytes(b"x" * (128 << 10))
    run = {"id": "r", "server": "s", "phase": "running", "pid": 1, "started": 0.0, "port": 1, "tp": 1, "argv": [],
           "spec_hash": "", "directory": "", "log": "", "dump_dir": "", "patches": {}, "sglang": "", "exit": None,
           "ranks": {}, "helpers": {}, "rank_pids": {}, "left": [], "hellos": [], "uptime_s": 1.0}  # fmt: skip
    watch, vitals = Watch(parse_run(run), Baseline("s"), floor=30.0, now=0.0), Vitals({})

    with child(script, str(piece), "65536") as process:
        for _ in range(2):  # what a first round of Python faults in is no sign of this one
            round_of(process)
        list(watch.take({"kind": "vitals", **looked(vitals, process)}, 0.0))
        round_of(process)
        list(watch.take({"kind": "vitals", **looked(vitals, process)}, 20.0))

    assert isinstance(watch.judge(30.0), Silent) is not works
    assert isinstance(watch.judge(50.0), Silent)


SMI = """#!/bin/sh
case "$1" in
--query-compute-apps=*) cat "{folder}/apps" ;;
*) echo "0, 1000"; echo "1, 2000" ;;
esac
"""


@pytest.mark.parametrize(
    "apps,mib",
    [("7, 500\n8, 600\n9, 90\n", 1100), ("9, 90\n", 3000), ("", 3000), ("7, [N/A]\n8, [N/A]\n", 3000)],
)
def test_gpu_memory_is_that_of_our_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apps: str, mib: int
) -> None:
    """A neighbour's must not speak for them; where the driver does not show them, the GPUs count as a whole."""
    (tmp_path / "apps").write_text(apps)
    (tmp_path / "nvidia-smi").write_text(SMI.format(folder=tmp_path))
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    memory = gpus.GpuMemory()

    wait_until(lambda: memory.look({7, 8}) is not None)

    assert memory.look({7, 8}) == mib
    memory.close()


@pytest.mark.parametrize(
    "visible,mib", [("", 700), ("0", 100), ("2, 1", 600), ("GPU-8d2a,1", 700), ("-1", 700), ("7", 700)]
)
def test_gpus_that_are_not_shown_to_the_server_do_not_count(visible: str, mib: int) -> None:
    """Where nvidia-smi names no processes, a neighbour that loads on other GPUs is no progress of this one."""
    memory = gpus.GpuMemory(visible)

    memory._take("", {7})
    memory._take("0, 100\n1, 200\n2, 400\n", {7})

    assert memory.mib == mib
    assert gpus.parse("0, [N/A]\n1, 5\n", {"1"}) == 5
    assert gpus.parse("Unable to determine the device handle") is None


def test_a_mute_nvidia_smi_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once and never again while it does not answer."""
    asked = tmp_path / "asked"
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho x >> {asked}\nexec sleep 600\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    memory = gpus.GpuMemory()

    memory.look(set())
    wait_until(lambda: asked.exists() and bool(asked.read_text()))
    answers = {memory.look(set()) for _ in range(100)}
    memory.close()

    assert answers == {None} and asked.read_text() == "x\n"


def wait_until(done: Any, seconds: float = 60.0) -> None:
    """Ask until it is so."""
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)
