"""Good runs are remembered and a log is held against them."""

from __future__ import annotations

from pathlib import Path

from hsops.core.baseline import Baseline, GoodRun, Step, as_json, compare, good_run, parse_baseline
from hsops.core.milestones import summarize

LOG = (Path(__file__).parent.parent / "cases" / "logs" / "healthy-0.5.23-tp2.log").read_bytes()


def a_run(name: str, *, shift: float = 0.0) -> GoodRun:
    summary = summarize(LOG)
    assert summary.first_time
    started = summary.first_time - 10 + shift  # the log's clock is one hour ahead of UTC in this test
    return good_run(
        summary, run=name, spec_hash="s", sglang="0.5.23", started=started - 3600, now=started - 3560, utc_offset=3600
    )


def test_good_run_counts_from_the_launch() -> None:
    """Seconds count from the launch, in spite of the log's time zone; a rank step is done when the last rank is."""
    run = a_run("r1")

    assert run.steps["distributed"].seconds == 30.0
    assert run.seconds == 40.0
    assert run.lines == summarize(LOG).lines - summarize(LOG).probe_lines < summarize(LOG).lines


def test_file_round_trip_and_limit() -> None:
    """What is written is read back equal; only the newest runs are kept."""
    baseline = Baseline("tiny")

    for i in range(9):
        baseline = baseline.with_run(a_run(f"r{i}"))

    assert [run.run for run in baseline.runs] == ["r8", "r7", "r6", "r5", "r4"]
    assert parse_baseline(as_json(baseline)) == baseline


def test_compare_names_lines_and_time_to_go() -> None:
    """A log that stopped after the weights is held against the lines and seconds of good runs at that point."""
    cut = LOG[: LOG.index(b"[2026-11-29 17:40:47 TP1] KV Cache")]

    found = compare(Baseline("tiny", (a_run("r1"),)), summarize(cut))

    assert found is not None
    assert found.next == "memory-pool" and found.lines < found.good_lines[0]
    assert found.here == (summarize(LOG).reached["weights"]["TP1"].line,) * 2
    assert found.remaining_s is not None and found.remaining_s > 0


def test_step_takes_the_longest() -> None:
    """The usual time of a step is the longest that a good run took for it."""
    runs = [
        GoodRun(str(n), "s", "0.5.9", 0.0, {"weights": Step(5, 10.0), "http": Step(9, 10.0 + n)}, 20, 30.0)
        for n in (4, 7)
    ]

    baseline = Baseline("tiny", tuple(runs))

    assert baseline.step_s("http") == 7.0
    assert baseline.step_s("weights") == 10.0
    assert baseline.step_s("never") is None
