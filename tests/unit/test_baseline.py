"""Good runs are remembered and a log is held against them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hsops.core.baseline import Baseline, GoodRun, Step, as_json, compare, good_run, parse_baseline
from hsops.core.launched import Launched, launched
from hsops.core.milestones import summarize
from hsops.core.runs import Run

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


def keyed(name: str, **fields: Any) -> GoodRun:
    was = Launched("0.5.9", "/m", 2, {"hs-dump": "3f9c"}, ("--dtype float32",))
    return replace(a_run(name), launched=replace(was, **fields), spec_hash=f"of-{name}")


def test_five_of_each_key_and_eight_keys_are_kept() -> None:
    """One launch with other flags does not push the usual ones out."""
    baseline = Baseline("tiny")

    for i in range(7):
        baseline = baseline.with_run(keyed(f"a{i}"))
    for i in range(8):
        baseline = baseline.with_run(keyed(f"b{i}", tp=4 + i))

    assert len(baseline.keys) == 8 and baseline.keyed(keyed("x").key) == ()
    assert len(baseline.with_run(keyed("a9")).runs) == 8
    for i in range(7):
        baseline = baseline.with_run(keyed(f"c{i}", tp=1))
    assert [run.run for run in baseline.keyed(keyed("x", tp=1).key)] == ["c6", "c5", "c4", "c3", "c2"]
    assert parse_baseline(json.loads(json.dumps(as_json(baseline)))) == baseline


def test_the_nearest_runs_are_compared_with() -> None:
    """Equal launches, else the same key, else whatever there is."""
    baseline = Baseline("tiny", (keyed("new", tp=8), keyed("old"), keyed("equal")))

    assert [run.run for run in baseline.of("of-equal", keyed("x").key).runs] == ["equal"]
    assert [run.run for run in baseline.of("other", keyed("x").key).runs] == ["old", "equal"]
    assert baseline.of("other", "unknown").runs == baseline.runs


def test_a_file_of_an_older_hsops_is_read() -> None:
    """Without keys and templates."""
    old = as_json(Baseline("tiny", (a_run("r1"),)))
    del old["texts"]
    for name in ("launched", "kinds"):
        del old["runs"][0][name]

    (run,) = parse_baseline(old).runs

    assert (run.key, run.kinds, run.lines) == ("", {}, a_run("r1").lines)


def test_no_key_is_kept() -> None:
    """SGLang logs its arguments; quoted words are blanked anyway, others are not."""
    log = b"[2026-11-29 17:40:00] args api_key=sk-alpha, x\n[2026-11-29 17:40:00] Bearer sk-alpha\n" + LOG
    run = good_run(summarize(log), run="r", spec_hash="s", sglang="", started=0.0, now=9.0, utc_offset=0.0)

    texts = as_json(Baseline("tiny", (run,)))["texts"]

    assert "args api_key=***, x" in texts and "Bearer ***" in texts
    assert not any("alpha" in text for text in texts)


def test_where_it_listens_is_no_difference_and_a_secret_is_not_kept() -> None:
    """Another port, address or key is the same launch; another flag, patch or release is told."""
    argv = ("/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "/m", "--tp-size", "2", "--port", "{}",
            "--api-key", "sk-1", "--dtype", "float32", "--cuda-graph-bs", "1", "2")  # fmt: skip
    runs = [
        Run("r", "tiny", "running", 1, 0.0, port, 2, tuple(word.format(port) for word in argv), "s", "", "", "",
            {"hs-dump": "3f9c"}, "0.5.9", None, {})
        for port in (8000, 8001)
    ]  # fmt: skip

    first, second = map(launched, runs)

    assert first == second and first.key == second.key
    assert first.flags == ("--api-key ***", "--cuda-graph-bs 1 2", "--dtype float32", "--tp-size 2")
    other = replace(first, sglang="0.5.10", patches={}, flags=("--dtype half", *first.flags[:2]))
    assert list(first.differences(other)) == [
        "sglang 0.5.10, here 0.5.9", "patch hs-dump none, here 3f9c", "without --dtype float32", "without --tp-size 2",
        "with --dtype half",
    ]  # fmt: skip
    assert other.key != first.key
