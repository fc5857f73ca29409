"""The judgement over a launch: death, stall, refusal, health. Time is an argument."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hsops.core.baseline import Baseline, good_run
from hsops.core.events import Event, Note
from hsops.core.milestones import summarize
from hsops.core.runs import parse_run
from hsops.launch import stall
from hsops.launch.events import CaptureSaid, MilestoneReached, StageDone, Waiting
from hsops.launch.explain import doing
from hsops.launch.health import ANSWERS, REFUSED, STABLE, STARTING, UP, Probe
from hsops.launch.judgement import Answering, CaptureRefused, Died, Silent
from hsops.launch.matrix import matrix
from hsops.launch.standing import Standing
from hsops.launch.wait import Healthy, Stalled, _died
from hsops.launch.watch import HELLO_GRACE_S, Watch
from hsops.remote.orphans import Orphans
from hsops.render import launch as render_launch
from hsops.render import status as render_status

LOG = (Path(__file__).parent.parent / "cases" / "logs" / "healthy-0.5.23-tp2.log").read_bytes()
FIRST = summarize(LOG).first_time or 0.0
STARTED = FIRST - 5


def a_run(**changed: Any) -> dict[str, Any]:
    return {
        "id": "1129-174020-abcd", "server": "tiny", "phase": "running", "pid": 1, "started": STARTED, "port": 31011,
        "tp": 2, "argv": [], "spec_hash": "s", "directory": "/r", "log": "/r/server.log", "dump_dir": "",
        "patches": {}, "sglang": "0.5.23", "exit": None, "ranks": {"TP0": None, "TP1": None}, "helpers": {},
        "rank_pids": {}, "left": [], "hellos": [], "uptime_s": 1.0, **changed,
    }  # fmt: skip


def an_exit(time: float, **changed: Any) -> dict[str, Any]:
    return {"code": None, "signal": "SIGKILL", "oom": False, "time": time, **changed}


def a_watch(*, captures: bool = False, floor: float | None = 60.0, baseline: Baseline | None = None) -> Watch:
    followed = parse_run(a_run(dump_dir="/dumps" if captures else ""))
    return Watch(followed, baseline or Baseline("tiny"), floor=floor, now=0.0)


def feed(watch: Watch, log: bytes, *, now: float = 1.0) -> list[Event]:
    told = {"kind": "log", "file": 7, "offset": watch.place.offset, "data": log.decode("utf-8", "surrogateescape")}
    return list(watch.take(told, now))


def vitals(watch: Watch, now: float, **changed: Any) -> None:
    calm: dict[str, Any] = {"kind": "vitals", "now": STARTED + now, "read": 0, "majflt": 0, "rss": 10**9, "ranks": {}}
    assert list(watch.take({**calm, **changed}, now)) == []


def a_rank(**changed: Any) -> dict[str, Any]:
    return {"read": 0, "cached": 0, "majflt": 0, "minflt": 0, "rss": 10**9, "cpu": 0, "state": "R", **changed}


def a_compiler(**changed: Any) -> dict[str, Any]:
    return {"name": "nvcc", "what": "batch_prefill.cu", "age_s": 40.2, "cpu": 100, **changed}


def hello(*ranks: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "hello", "ranks": list(ranks)}


def climb(watch: Watch, *statuses: int) -> None:
    ladder = watch.ladder
    for status in statuses:
        probe = Probe(ladder.next_path, status, 0.1)
        ladder = ladder.take(probe)
        list(watch.probed(probe, ladder))


def good() -> Baseline:
    found = good_run(
        summarize(LOG), run="r0", spec_hash="s", sglang="0.5.23", started=STARTED, now=STARTED + 40, utc_offset=0
    )
    return Baseline("tiny", (found,))


def test_a_healthy_launch_is_told_step_by_step() -> None:
    """Each milestone once a rank, each stage once, in order; then the probes decide."""
    watch = a_watch()

    events = feed(watch, LOG)
    before = watch.judge(2.0)
    climb(watch, 0, 503, 200, 200, 200, 200)

    weights = [(e.milestone, e.rank) for e in events if isinstance(e, MilestoneReached) and e.milestone == "weights"]
    assert weights == [("weights", "TP0"), ("weights", "TP1")]
    stages = [e.stage for e in events if isinstance(e, StageDone)]
    assert stages == ["arguments", "distributed", "weights", "kv cache", "http", "warm-up"]
    assert before is None
    assert watch.judge(3.0) == Answering()


@pytest.mark.parametrize(
    "patches, then", [({"hs-dump": "1f22"}, "next: hsops extract"), ({}, "without a patch: nothing is captured")]
)
def test_what_to_do_with_a_healthy_server(patches: dict[str, str], then: str) -> None:
    """Prompts, where it captures."""
    run, summary = parse_run(a_run(patches=patches)), summarize(b"")

    (line,) = render_launch.healthy_lines(Healthy(run, 39.0, summary, good().runs[0]))

    assert line.startswith("healthy after 0:39 · run ") and line.endswith(f"   {then}")


@pytest.mark.parametrize(
    "statuses,level",
    [
        ((0,), REFUSED),
        ((503,), STARTING),
        ((-1,), STARTING),
        ((200,), UP),
        ((200, 200), ANSWERS),
        ((200, 500), STARTING),
        ((200, 200, 200), ANSWERS),
        ((200, 200, 200, 200), STABLE),
        ((200, 200, 200, 503), STARTING),
        ((200, 200, 200, 0), REFUSED),
    ],
)
def test_the_ladder(statuses: tuple[int, ...], level: str) -> None:
    """200, a completion, two more 200s; anything else on the way begins anew."""
    watch = a_watch()

    climb(watch, *statuses)

    assert watch.ladder.level == level


@pytest.mark.parametrize("ago,judged_at", [(0.0, 0.8), (0.3, 0.5), (5.0, 0.4)])
def test_what_a_busy_host_took_to_tell_a_death_is_part_of_the_grace(ago: float, judged_at: float) -> None:
    """But half of it is left for the others' last words."""
    watch = a_watch()
    died = a_run(ranks={"TP0": None, "TP1": an_exit(STARTED + 20 - ago)})

    list(watch.take({"kind": "run", "run": died, "utc_offset": 0.0, "now": STARTED + 20}, 2.0))

    assert watch.judge(2.0 + judged_at - 0.05) is None
    assert isinstance(watch.judge(2.0 + judged_at + 0.05), Died)


def one_dead(watch: Watch, now: float, **changed: Any) -> list[str]:
    """TP1 of a server with a restart policy was killed: what is said."""
    died = a_run(restarts=True, ranks={"TP0": None, "TP1": an_exit(19.5)}, **changed)
    return [str(event) for event in watch.take({"kind": "run", "run": died, "utc_offset": 0.0, "now": STARTED}, now)]


def test_a_death_before_its_supervisor_has_decided() -> None:
    """It is told at once, and is no end of the watch; the decision is told when it is there."""
    watch = a_watch()

    told = one_dead(watch, 2.0, served=True)
    meanwhile = watch.judge(16.0)
    decided = one_dead(watch, 18.0, served=True, exit=an_exit(20.0), restart_at=STARTED + 5)
    waits = watch.judge(19.0)

    assert "TP1 of tiny has ended (killed by SIGKILL)" in told[0] and "decides within 30 s" in told[0]
    assert (meanwhile, waits) == (None, None)
    assert "TP1 ended (killed by SIGKILL); the host starts it again in 5 s, for attempt 2" in decided[0]


def test_a_server_that_came_back_between_two_looks() -> None:
    """How it had ended is told all the same."""
    watch = a_watch()
    ranks = {"TP0": an_exit(20.0), "TP1": an_exit(19.5)}
    before = {"attempt": 1, "started": STARTED, "exit": an_exit(20.1), "ranks": ranks, "helpers": {}}

    again = a_run(restarts=True, attempt=2, attempts=[before])
    told = list(watch.take({"kind": "run", "run": again, "utc_offset": 0.0, "now": STARTED}, 2.0))

    assert told == [Note("TP1 ended (killed by SIGKILL); the host has started it again, as attempt 2")]
    assert watch.judge(9.0) is None


def test_a_supervisor_that_decides_against_it_says_why() -> None:
    """So does the launch."""
    watch = a_watch()
    one_dead(watch, 2.0, served=True)

    one_dead(watch, 18.0, served=True, phase="exited", exit=an_exit(20.0), not_restarted="it was started again 3 times")
    judged = watch.judge(19.0)

    assert isinstance(judged, Died)
    assert "not started again: it was started again 3 times" in _died(watch.run, judged, "lab").why


@pytest.mark.parametrize("served,now", [(False, 2.9), (True, 33.0)], ids=["never served", "no decision"])
def test_a_death_that_no_decision_will_follow(served: bool, now: float) -> None:
    """A start that failed is not tried again, and a supervisor may be gone itself."""
    watch = a_watch()
    one_dead(watch, 2.0, served=served)

    judged = watch.judge(now)

    assert isinstance(judged, Died) and judged.who == "TP1"
    assert served or "has never listened" in _died(watch.run, judged, "lab").why


def test_death_of_a_rank() -> None:
    """The first to die is named, with the error of the log, once the others had a moment to speak."""
    watch = a_watch()
    feed(watch, LOG[: LOG.index(b"Memory pool end")])

    ends = {"TP0": an_exit(20.0, code=1, signal=""), "TP1": an_exit(19.5)}
    list(watch.take({"kind": "run", "run": a_run(ranks=ends)}, 2.0))
    at_once = watch.judge(2.0)
    feed(
        watch, b"[2026-11-29 17:40:48 TP0] Scheduler hit an exception: Traceback (most recent call last):\nOSError: x\n"
    )
    later = watch.judge(2.9)

    assert at_once is None
    assert isinstance(later, Died) and later.who == "TP1"
    assert later.exit and later.exit.signal == "SIGKILL"
    assert later.summary.cause and later.summary.cause.id == "scheduler-exception"


@pytest.mark.parametrize(
    "end,message",
    [
        ({"code": 1, "signal": ""}, "tiny failed: RuntimeError: the first line of it"),
        ({"code": 3, "signal": ""}, "TP1 of tiny ended: exit 3"),
        ({}, "TP1 of tiny was killed by SIGKILL"),
    ],
)
def test_a_bare_traceback_is_the_cause_of_an_end_by_an_exception(end: dict[str, Any], message: str) -> None:
    """Python exits 1 after it; beside another end it is what the others said."""
    log = b'Process scheduler_TP1:\nTraceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n'
    watch = a_watch()
    feed(watch, log + b"RuntimeError: the first line of it\nand a second one\n")
    ranks = {"TP0": None, "TP1": an_exit(STARTED + 9, **end)}
    list(watch.take({"kind": "run", "run": a_run(ranks=ranks), "utc_offset": 0.0, "now": STARTED + 9}, 2.0))

    died = watch.judge(9.0)

    assert isinstance(died, Died)
    assert _died(watch.run, died, "lab").message == message


def test_a_rank_that_misses_another_is_not_the_cause() -> None:
    """SGLang 0.5.9 after loading: TP0 raises because TP1 is gone; the headline is TP1."""
    watch = a_watch()
    feed(
        watch,
        b'[2026-11-29 17:40:48 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File "a.py"\n'
        b"ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish.\n",
    )
    list(watch.take({"kind": "run", "run": a_run(ranks={"TP0": None, "TP1": an_exit(STARTED + 9)})}, 2.0))

    died = watch.judge(9.0)

    assert isinstance(died, Died)
    assert _died(watch.run, died, "lab").message == "TP1 of tiny was killed by SIGKILL"


def test_a_run_that_waits_to_be_started_again_is_waited_for() -> None:
    """It is said once; silence meanwhile is no stall; the next attempt is judged on its own."""
    ended = {"exit": an_exit(STARTED + 9), "ranks": {"TP0": None, "TP1": an_exit(STARTED + 8)}}
    waiting = {"kind": "run", "run": a_run(**ended, restart_at=STARTED + 30), "utc_offset": 0.0, "now": STARTED + 10}
    watch = a_watch(floor=60.0)

    told = [*watch.take(waiting, 1.0), *watch.take(waiting, 2.0), *feed(watch, LOG, now=2.0)]
    vitals(watch, 200.0)
    judged = [watch.judge(now) for now in (1.0, 5.0, 200.0)]
    list(watch.take({"kind": "run", "run": a_run(attempt=2)}, 201.0))
    cut = list(watch.take({"kind": "log-cut", "why": "restarted", "file": 8}, 201.0))
    again = (watch.judge(210.0), watch.summary.lines, watch.port_is_open)
    list(watch.take({"kind": "run", "run": a_run(attempt=2, ranks={"TP0": an_exit(STARTED + 99)})}, 211.0))

    said = [one.message for one in told if isinstance(one, Note)]
    assert said == ["TP1 ended (killed by SIGKILL); the host starts it again in 20 s, for attempt 2"]
    assert judged == [None] * 3 and len(cut) == 1 and again == (None, 0, False)
    died = watch.judge(220.0)
    assert isinstance(died, Died) and died.who == "TP0"


def test_end_of_the_stream_is_the_end() -> None:
    """When the run has ended there is nothing to wait for."""
    watch = a_watch()

    list(watch.take({"kind": "result", "run": a_run(phase="exited", exit=an_exit(3.0, code=2, signal=""))}, 2.0))

    found = watch.judge(2.0)
    assert isinstance(found, Died) and found.who == "server" and found.exit and found.exit.code == 2


def test_silence_is_a_stall() -> None:
    """Nothing moves: judged stalled at the floor, not before."""
    watch = a_watch(floor=60.0)
    feed(watch, LOG[: LOG.index(b"[2026-11-29 17:40:47 TP1] KV Cache")], now=10.0)
    vitals(watch, 10.0)

    for second in range(11, 70):
        vitals(
            watch, float(second), majflt=second // 10, rss=10**9 + second * 4096
        )  # a spinning process faults a little

    assert watch.judge(69.9) is None
    found = watch.judge(70.0)
    assert isinstance(found, Silent) and (found.silent_s, found.limit_s) == (60.0, 60.0)
    assert watch.summary.stage == "kv cache"


@pytest.mark.parametrize(
    "sign",
    [
        {"read": 10**8},
        {"majflt": 5000},
        {"rss": 3 * 10**9},
        {"cached": 10**6},
        {"compilers": [a_compiler()]},
        {"gpu_mib": 500},
        {"jit": {"grown": 1, "where": "/root/.cache/flashinfer"}},
        {"ranks": {"TP0": a_rank(minflt=5000)}},
    ],
)
def test_slow_but_moving_is_no_stall(sign: dict[str, Any]) -> None:
    """Reads, page faults, memory, a JIT cache that grows or a compiler at work put the stall off."""
    watch = a_watch(floor=60.0)
    calm = {"grown": 0, "where": ""}
    vitals(watch, 0.0, gpu_mib=0, jit=calm, ranks={"TP0": a_rank()})

    vitals(watch, 50.0, **sign)

    assert watch.judge(100.0) is None
    assert isinstance(watch.judge(110.0), Silent)


def test_a_bar_that_redraws_is_no_stall_but_a_probe_is() -> None:
    """A progress bar moves the clock; the log lines that health probes cause do not."""
    watch = a_watch(floor=60.0)

    feed(watch, b"Loading safetensors checkpoint shards:   3% Completed | 2/64 [00:01<00:40, 1.5it/s]\r", now=50.0)
    feed(watch, b'[2026-11-29 17:40:48] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service\n', now=80.0)
    feed(watch, b'[2026-11-29 17:40:49] INFO:     127.0.0.1:1 - "GET /v1/loads HTTP/1.1" 404 Not Found\n', now=81.0)
    feed(watch, b"[2026-11-29 17:40:49] Endpoint '/get_load' is deprecated and will be removed\n", now=82.0)
    feed(watch, b'[2026-11-29 17:40:50] INFO:     127.0.0.1:1 - "GET /metrics HTTP/1.1" 404 Not Found\n', now=83.0)

    assert watch.judge(109.0) is None
    assert isinstance(watch.judge(110.0), Silent)


def test_a_rank_that_sleeps_and_reads_a_little_is_alive() -> None:
    """64 KiB every five seconds: a network disk with bad days."""
    watch = a_watch(floor=30.0)

    for second in range(0, 300, 5):
        vitals(watch, float(second), read=second // 5 * 65_536)
        assert watch.judge(float(second)) is None


def test_a_compiler_works_for_as_long_as_it_computes() -> None:
    """For minutes without a line; one that only sleeps is believed for five, then it is a stall like any other."""
    watch = a_watch(floor=30.0)

    for second in range(600):
        vitals(watch, float(second), compilers=[a_compiler(cpu=second)])
        assert watch.judge(float(second)) is None
    for second in range(600, 899):
        vitals(watch, float(second), compilers=[a_compiler(cpu=599)])
        assert watch.judge(float(second)) is None
    for second in range(899, 940):
        vitals(watch, float(second), compilers=[a_compiler(cpu=599)])

    assert isinstance(watch.judge(940.0), Silent)


FORWARD = ("run_scheduler_process", "event_loop_normal", "run_batch", "forward")


@pytest.mark.parametrize(
    "stacks,works",
    [
        ([("init", "repack"), ("init", "repack"), ("init", "to_pool")], True),
        ([("init", "spin"), ("init", "spin"), ("init", "spin")], False),
        ([("init", "spin"), ("init", "spin", "now"), ("init",), ("init", "spin", "now")], False),  # it calls, returns
        ([(*FORWARD, "attention"), (*FORWARD, "experts")], True),
        ([("event_loop_normal", "recv_requests"), ("event_loop_normal", "get_next_batch_to_run")], False),  # idle
    ],
)
def test_cpu_is_work_only_where_the_function_changes(stacks: list[tuple[str, ...]], works: bool) -> None:
    """A busy-wait burns CPU and is a hang: it stands where it stood."""
    watch = a_watch(floor=30.0)

    for i, stack in enumerate(stacks):
        vitals(watch, 8.0 * i, ranks={"TP0": a_rank(cpu=800 * i)}, functions={"TP0": list(stack)})
    last = 8.0 * (len(stacks) - 1)

    assert (watch.judge(29.9 + last) is None) == works
    assert isinstance(watch.judge(30.0 + last), Silent)


def test_a_process_or_a_link_that_ends_is_no_work() -> None:
    """Sums over the tree fall, and a new connection begins its own counts at nought."""
    watch = a_watch(floor=30.0)
    vitals(watch, 0.0, read=10**9, cached=10**9, majflt=1000)

    for second in range(10, 31, 10):
        vitals(watch, float(second), read=10**8 // second, cached=0, majflt=0)

    assert isinstance(watch.judge(30.0), Silent)


def loading(watch: Watch, percent: int) -> None:
    """TP0 has its weights, TP1 has not."""
    feed(watch, LOG[: LOG.index(b"[2026-11-29 17:40:46 TP1] Load weight begin")])
    bar = f"Loading safetensors checkpoint shards: {percent:3}% Completed | {percent}/100 [00:09<00:00, 9.9it/s]\r"
    feed(watch, b"\n" + bar.encode())


def test_a_full_bar_is_not_loaded_and_says_who_reads_how_fast() -> None:
    """The bar is rank 0's, and counts files."""
    watch = a_watch(floor=30.0)
    loading(watch, 100)

    vitals(watch, 10.0, ranks={"TP1": a_rank()})
    vitals(watch, 12.0, ranks={"TP1": a_rank(read=3 << 30)})
    reading = doing(watch, now=12.0)
    vitals(watch, 30.0, ranks={"TP1": a_rank(read=3 << 30)})
    starved = doing(watch, now=30.0)
    vitals(watch, 31.0, ranks={"TP1": a_rank(read=3 << 30, state="T")})
    stopped = doing(watch, now=31.0)

    assert reading == ("shard bar 100 % is not loaded: TP1 still loading, reading 1.5 GiB/s",)
    assert starved == ("shard bar 100 % is not loaded: TP1 still loading, reading nothing for 18 s",)
    assert stopped == ("shard bar 100 % is not loaded: TP1 still loading, TP1 stopped by a signal",)


@pytest.mark.parametrize("caption", ["Capturing batches (bs=8 avail_mem=4.81 GB): ", ""])
def test_the_bar_of_graph_capture_is_told(caption: str) -> None:
    """It redraws itself by carriage returns; an older SGLang gives it no name."""
    watch = a_watch(floor=30.0)
    log = LOG[: LOG.index(b"[2026-11-29 17:40:47 TP1] KV Cache")]
    for here, on_a_gpu in (
        (b"'cpu'", b"'cuda'"),
        (b"graph': True", b"graph': False"),
        (b"Cuda graph is disabled", b""),
    ):
        log = log.replace(here, on_a_gpu)
    feed(watch, log)
    for rank in (0, 1):
        feed(watch, f"[2026-11-29 17:40:48 TP{rank}] Memory pool end. avail mem=5 GB\n".encode())
        feed(watch, f"[2026-11-29 17:40:48 TP{rank}] Capture target decode CUDA graph begin. bs=1\n".encode())

    feed(
        watch, f"\r{caption}  0%|          | 0/23 [00:00<?, ?it/s]\r{caption} 43%|####  | 10/23 [00:01<00:01]".encode()
    )

    assert watch.summary.stage == "graphs"
    assert doing(watch, now=2.0) == ("CUDA graphs 43 % (10/23)",)


def test_compilers_caches_and_functions_are_told() -> None:
    """What a start does while its log is mute; what only starts others is left out."""
    watch = a_watch(floor=30.0)
    cache = {"grown": 1, "where": "/root/.cache/flashinfer"}
    vitals(watch, 0.0, jit={"grown": 0, "where": ""})
    ninja = a_compiler(name="ninja", what="", age_s=99.0)

    vitals(watch, 9.0, compilers=[ninja, a_compiler()], jit=cache)
    vitals(watch, 9.5, compilers=[ninja, a_compiler()], jit=cache, functions={"TP0": ["init", "warm"], "TP1": ["init"]})

    assert doing(watch, now=10.0) == (
        "nvcc is compiling batch_prefill.cu for 40 s",
        "the JIT cache /root/.cache/flashinfer grows",
        "TP0 in warm",
        "TP1 in init",
    )
    assert matrix(watch, now=10.0).doing == doing(watch, now=10.0)


def test_a_silent_stretch_is_explained_in_a_pipe() -> None:
    """Below the line that says that the wait goes on."""
    told = ("nvcc is compiling batch_prefill.cu for 40 s",)

    shown = list(lines([Waiting("kv cache", ("TP1",), 12.0, 30.0, 217, 95.0, told)]))

    assert shown == [
        "          still 'kv cache' (waiting for TP1) · nothing moved for 0:12, stalled at 0:30 · log 217 lines"
        " · about 1:35 to healthy",
        "          nvcc is compiling batch_prefill.cu for 40 s",
    ]


@pytest.mark.parametrize(
    "usual_s,told",
    [
        (0.2, "usual for this step 0:01"),
        (4.0, "usual for this step 0:04"),
        (None, "no good run is known"),
    ],
)
def test_a_stall_is_told_in_one_line(usual_s: float | None, told: str) -> None:
    """Beside what good runs took, in words that a step of no time does not turn into nonsense."""
    until_weights = summarize(LOG[: LOG.index(b"KV Cache is allocated")])
    found = Stalled(parse_run(a_run()), 30.6, 30.0, usual_s, until_weights)

    (line,) = render_launch.stalled_lines(found)

    assert line.startswith("stalled  nothing moved for 0:31 (log, disk, ")
    assert line.endswith(f"; {told}; next: 'memory-pool'")
    assert len(f"lab: {line}") <= 124


@pytest.mark.parametrize(
    "floor,usual,limit",
    [
        (None, None, stall.FLOOR_UNKNOWN_S),
        (None, 4.0, stall.FLOOR_S),
        (None, 400.0, 800.0),
        (15.0, None, 15.0),
        (15.0, 4.0, 15.0),
        (15.0, 30.0, 60.0),
    ],
)
def test_limit(floor: float | None, usual: float | None, limit: float) -> None:
    """The larger of the floor and twice what good runs took."""
    assert stall.limit_s(floor=floor, usual=usual) == limit


def test_good_runs_stretch_the_patience_and_tell_the_time_to_go() -> None:
    """The step under way is held against the same step of good runs."""
    watch = a_watch(floor=1.0, baseline=good())

    feed(watch, LOG[: LOG.index(b"[2026-11-29 17:40:44 TP1] Init parallel begin")])
    vitals(watch, 6.0)

    assert watch.summary.next and watch.summary.next.id == "distributed-begin"
    assert watch.limit_s == 2 * (watch.usual_step_s or 0) == 32.0
    assert watch.remaining_s == 40.0 - 6.0


def test_capture_must_be_confirmed_by_every_rank() -> None:
    """A healthy server of which one rank said nothing is not healthy; one that says no is refused at once.

    A file that was written since the last look at them is waited for, however fast the server became healthy.
    """
    watch = a_watch(captures=True)
    said = list(watch.take(hello({"rank": 0, "ok": True, "reason": ""}), 1.0))
    climb(watch, 200, 200, 200, 200)

    early, late = watch.judge(2.0), watch.judge(2.0 + HELLO_GRACE_S - 0.1)
    silent = watch.judge(2.0 + HELLO_GRACE_S)
    list(watch.take(hello({"rank": 0, "ok": True}, {"rank": 1, "ok": True}), 1.0))
    whole = watch.judge(13.0)
    list(watch.take(hello({"rank": 1, "ok": False, "reason": "radix cache is on"}), 1.0))
    refused = watch.judge(14.0)

    assert said == [CaptureSaid(0, captures=True, reason="")]
    assert early is None and late is None
    assert isinstance(silent, CaptureRefused) and "no word of the capture from TP1" in silent.reason
    assert "/dumps/hello" in silent.reason and "hsops deploy --status" in silent.fix
    assert whole == Answering()
    assert isinstance(refused, CaptureRefused) and refused.reason == "TP1 does not capture: radix cache is on"
    assert "servers.<name>.args" in refused.fix


def test_ranks_that_refuse_for_one_reason_are_named_together() -> None:
    """One sentence, not eight."""
    watch = a_watch(captures=True)
    said = [{"rank": rank, "ok": False, "reason": "pp_size=2"} for rank in (0, 1)]

    list(watch.take(hello(*said), 1.0))

    found = watch.judge(2.0)
    assert isinstance(found, CaptureRefused) and found.reason == "TP0, TP1 do not capture: pp_size=2"


REFUSAL = (
    b"hsops_hs_dump: rank 1: NOT capturing: the dump folder cannot be written: [Errno 28] No space left on device\n"
)


def test_a_refusal_without_a_hello_file_is_read_in_the_log() -> None:
    """Where no hello file can be written, the log has the rank and its reason; a rank that said yes is not doubted."""
    watch = a_watch(captures=True)

    feed(watch, LOG[:5000].rpartition(b"\n")[0] + b"\n" + REFUSAL)
    at_once = watch.judge(1.5)
    found = watch.judge(3.5)
    list(watch.take(hello({"rank": 0, "ok": True}, {"rank": 1, "ok": True}), 3.0))

    assert at_once is None  # its hello file may come yet, and those of the others
    assert isinstance(found, CaptureRefused)
    assert "TP1 does not capture: the dump folder cannot be written" in found.reason and "log line" in found.reason
    assert watch.judge(4.0) is None


LOST = (
    b"[2026-11-29 17:40:45 TP0] Ignore import error when loading sglang.srt.models.deepseek_v2: No module named 'x'\n"
)


@pytest.mark.parametrize("captures", [True, False])
def test_a_model_that_sglang_could_not_import_is_refused_at_once(captures: bool) -> None:
    """SGLang goes on and may serve another class; what fails to import for other models is nobody's fault."""
    followed = parse_run(a_run(dump_dir="/dumps" if captures else ""))
    watch = Watch(followed, Baseline("tiny"), floor=60.0, now=0.0, modules=("sglang.srt.models.deepseek_v2",))

    feed(watch, LOG)
    before = watch.judge(2.0)
    feed(watch, LOST)
    found = watch.judge(3.0)

    assert before is None and b"Ignore import error" in LOG
    if captures:
        assert isinstance(found, CaptureRefused)
        assert "sglang.srt.models.deepseek_v2" in found.reason and "No module named 'x' (log line" in found.reason
    else:
        assert found is None


def test_matrix() -> None:
    """Done, begun and due, a cell a rank; what is said once stands in the first cell."""
    watch = a_watch(baseline=good())
    feed(watch, LOG[: LOG.index(b"[2026-11-29 17:40:46 TP1] Load weight begin")])

    picture = matrix(watch, now=1.0)

    rows = {row.stage: row.cells for row in picture.rows}
    assert rows == {
        "arguments": ("+", ""),
        "distributed": ("+", "+"),
        "weights": ("+", "."),
        "kv cache": (".", "."),
        "http server": (".", ""),
        "warm-up, healthy": (".", ""),
    }
    assert next(row.note for row in picture.rows if row.stage == "weights") == "waiting for TP1"
    assert all(row.usual_s is not None for row in picture.rows)


def lines(events: list[Event]) -> Iterator[str]:
    from hsops.render import launch  # noqa: F401 - registers
    from hsops.render.describe import describe

    for event in events:
        yield from describe(event)


def test_lines_for_a_pipe() -> None:
    """A pipe gets a line a stage, with the usual time beside it."""
    watch = a_watch(baseline=good())

    shown = list(lines(feed(watch, LOG)))

    assert shown[1] == "    0:25  distributed   usual 0:25"
    assert len(shown) == 6


@pytest.mark.parametrize(
    "text,mib", [("0, 1024\n1, 2048\n", 3072), ("", None), ("0, [N/A]\n", None), ("Failed to ...\n", None)]
)
def test_gpu_memory(text: str, mib: int | None) -> None:
    """nvidia-smi's answer, or None when it is none."""
    from hsops.agent.gpus import parse

    assert parse(text) == mib


def test_status_tells_what_a_run_captures_or_that_it_does_not() -> None:
    """Boundaries and strategy on one line; a refusal is not to be overlooked."""
    said = {"ok": True, "reason": "", "strategy": "prepare-attn", "boundaries": [3, 31, 59], "final": "pre-norm"}
    good = parse_run(a_run(dump_dir="/d", hellos=[{**said, "rank": 0}, {**said, "rank": 1}]))
    half = parse_run(a_run(dump_dir="/d", hellos=[{**said, "rank": 0}]))

    standing = Standing("stable", "healthy")
    rows = tuple((run, standing) for run in (good, half, parse_run(a_run())))
    host = render_status.HostStatus(rows, Orphans((), "no nvidia-smi on PATH", no_gpu_tool=True))
    lines = list(render_status.lines(["box"], {"box": host}, {}))

    assert "captures 3, 31, 59 and pre-norm final by prepare-attn" in lines[0]
    assert "CAPTURES NOTHING: no word of the capture from TP1" in lines[1]
    assert "apture" not in lines[2]


@pytest.mark.parametrize(
    "ok,told", [(True, "  no word of the capture yet"), (False, "  CAPTURES NOTHING: TP0 does not")]
)
def test_status_of_a_start_does_not_call_the_capture_lost(ok: bool, told: str) -> None:
    """Ranks say what they resolved once the model is loaded; a refusal is told at once."""
    said = {"ok": ok, "reason": "" if ok else "mixed chunks", "rank": 0}
    starting = parse_run(a_run(dump_dir="/d", hellos=[said]))

    rows = ((starting, Standing("refused", "port closed")),)
    host = render_status.HostStatus(rows, Orphans((), "no nvidia-smi on PATH", no_gpu_tool=True))
    (line, *_) = render_status.lines(["box"], {"box": host}, {})

    assert told in line
