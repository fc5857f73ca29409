"""A server log becomes a summary: recorded logs of real SGLang 0.5.9 and 0.5.23, cut and bent."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hsops.core.milestones import LogReader, summarize

LOGS = Path(__file__).parent.parent / "cases" / "logs"


def log(name: str) -> bytes:
    return (LOGS / f"{name}.log").read_bytes()


@pytest.mark.parametrize("name,tp,port", [("healthy-0.5.9-tp1", 1, 31030), ("healthy-0.5.23-tp2", 2, 31011)])
def test_healthy(name: str, tp: int, port: int) -> None:
    """A healthy log of either generation ends in ready, with every rank through every step."""
    summary = summarize(log(name))

    assert (summary.tp, summary.port, summary.stage, summary.next) == (tp, port, "ready", None)
    for step in ("distributed", "weights", "memory-pool"):
        assert set(summary.reached[step]) == set(summary.ranks)
    assert summary.args["model_path"] == "/models/tiny"
    assert summary.cause is None
    assert [bar.percent for bar in summary.bars.values()] == [100]
    assert summary.lines == log(name).count(b"\n")


@pytest.mark.parametrize("name", [path.stem for path in LOGS.glob("*.log")])
def test_cut_anywhere(name: str) -> None:
    """Fed in pieces cut anywhere, even inside a character or an escape, the summary is the same."""
    data, whole = log(name), summarize(log(name))
    cuts = random.Random(7)

    for longest in (1, 3, 200):
        reader, at = LogReader(), 0
        while at < len(data):
            size = cuts.randint(1, longest)
            reader.feed(data[at : at + size])
            at += size
        assert reader.summary() == whole


def test_next_names_the_rank_that_is_behind() -> None:
    """A step that one rank has taken and the other has not is the next step."""
    data = log("healthy-0.5.23-tp2")
    cut = data.index(b"TP1] Load weight end")

    summary = summarize(data[: data.rindex(b"\n", 0, cut) + 1])

    assert summary.next is not None and summary.next.id == "weights"
    assert summary.missing(summary.next) == ("TP1",)
    assert summary.stage == "weights"


def test_next_after_weights_is_the_kv_cache() -> None:
    """The seeds' hang: silence after the weights; the step that is due is named."""
    data = log("peer-closed-0.5.9-tp2")

    summary = summarize(data[: data.index(b"[2026-11-29 17:54:35 TP0] Using KV cache dtype")])

    assert summary.next is not None and (summary.next.id, summary.stage) == ("memory-pool", "kv cache")
    assert summary.last_milestone is not None and summary.last_milestone.id == "weights"


def test_graphs_are_due_only_where_they_are_captured() -> None:
    """On a GPU without --disable-cuda-graph the step after the memory pool is graph capture."""
    start = b"[2026-01-01 00:00:0%d] server_args=ServerArgs(tp_size=1, device='cuda', disable_cuda_graph=%s)\n"
    pool = b"[2026-01-01 00:00:02] Memory pool end. avail mem=3 GB\n"

    on, off = (summarize(start % (1, flag) + pool) for flag in (b"False", b"True"))

    assert on.next is not None and on.next.id == "graphs-begin"
    assert off.next is not None and off.stage == "http"


def test_bar_without_line_end() -> None:
    """A bar that redraws itself is seen while its line is still open, and counts as one line."""
    reader = LogReader(tp=8)

    reader.feed(b"Loading safetensors checkpoint shards:   3% Completed | 2/64 [00:01<00:40, 1.5it/s]\r")
    reader.feed(b"Loading safetensors checkpoint shards:  50% Completed | 32/64 [00:20<00:2")
    summary = reader.summary()

    (bar,) = summary.bars.values()
    assert (bar.percent, bar.done, bar.total, summary.lines) == (50, 32, 64, 0)


def test_stamp_in_the_middle_of_a_bar() -> None:
    """A rank that writes over an unbroken bar is still heard, with its rank."""
    bar = b"Multi-thread loading shards:   0% Completed | 0/1 [00:00<?, ?it/s]"
    data = bar + b"[2026-11-29 17:40:46 TP3] Load weight end. \n"

    summary = summarize(data, tp=8)

    assert list(summary.reached["weights"]) == ["TP3"]
    assert [bar.percent for bar in summary.bars.values()] == [0]


def test_colour_is_ignored() -> None:
    """ANSI colour around stamp and message changes nothing."""
    summary = summarize(
        b"\x1b[1;33m[2026-11-29 17:40:46 TP0]\x1b[0m \x1b[32mLoad weight begin.\x1b[0m avail mem=1 GB\r\n"
    )

    assert list(summary.reached["weights-begin"]) == ["TP0"]
    assert summary.lines == 1


def test_watchdog_log() -> None:
    """The watchdog is the cause, the SIGQUIT its echo, the failed health check a notice."""
    summary = summarize(log("watchdog-0.5.9-tp2"))

    assert {e.id: e.role for e in summary.errors} == {
        "health-timeout": "notice",
        "watchdog": "cause",
        "child-failed": "echo",
    }
    assert summary.cause is not None and summary.cause.id == "watchdog" and summary.cause.rank == "TP0"


def test_traceback_is_followed_to_its_end() -> None:
    """A rank that lost its peer is an echo; the exception and the innermost frame are kept."""
    summary = summarize(log("peer-closed-0.5.9-tp2"))

    error = summary.errors[0]
    assert (error.id, error.role, error.rank) == ("scheduler-exception", "echo", "TP0")
    assert error.last.startswith("RuntimeError: [/__w/pytorch") and "Connection closed by peer" in error.last
    assert error.frame.endswith("in broadcast")


@pytest.mark.parametrize(
    "line,name",
    [
        ("usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --enforce-eager", "bad-flag"),
        ("OSError: Can't load the configuration of '/nope'. If you were trying", "model-missing"),
        ("[2026-01-01 00:00:00] ERROR:    [Errno 98] cannot bind: Address already in use", "port-in-use"),
        ("[2026-01-01 00:00:00 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
         '  File "a.py", line 1, in f\ntorch.OutOfMemoryError: CUDA out of memory.', "scheduler-exception"),
        ("[2026-01-01 00:00:00] Initialization failed. warmup error: Traceback (most", "warmup-failed"),
        ("[2026-01-01 00:00:00 TP1] Watchdog timeout (self.watchdog_timeout=300)", "watchdog"),
        ("Traceback (most recent call last):\n  File \"x\", line 2, in y\nValueError: no", "traceback"),
        ("Traceback (most recent call last):\n  x\nOSError: [Errno 28] No space left on device", "disk-full"),
    ],
)  # fmt: skip
def test_troubles(line: str, name: str) -> None:
    """Each kind of ending is found with its id."""
    summary = summarize(line.encode() + b"\n")

    assert summary.cause is not None and summary.cause.id == name


def test_chained_traceback() -> None:
    """Of chained exceptions the last one counts."""
    text = (
        "Traceback (most recent call last):\n  a\nKeyError: 1\n\nDuring handling of the above exception, another "
        "exception occurred:\n\nTraceback (most recent call last):\n  File \"b\", line 1, in c\nRuntimeError: the end\n"
    )  # fmt: skip

    summary = summarize(text.encode())

    assert [e.last for e in summary.errors] == ["RuntimeError: the end"]


def test_rubbish_is_bounded() -> None:
    """Binary rubbish without line ends, and endless kinds of lines, neither fail nor grow without bound."""
    reader = LogReader()

    reader.feed(bytes(range(256)) * 8192)
    for i in range(3000):
        reader.feed(b"kind " + bytes([97 + i % 26]) * (i // 26 + 1) + b"\n")

    assert len(reader.summary().templates) <= LogReader.TEMPLATES + 1
