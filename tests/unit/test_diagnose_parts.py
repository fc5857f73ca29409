"""The parts of diagnosis: silence of a log, stacks laid over each other, evidence kept in a file."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from hsops.core.errors import BadDataError
from hsops.diagnose import judge
from hsops.diagnose.bundle import pack, redact, unpack
from hsops.diagnose.live import probe
from hsops.diagnose.log_text import is_noise, read_log
from hsops.diagnose.processes import Activity, Process
from hsops.diagnose.stacks import Frame, Stack, doing, merge
from hsops.remote.local import LocalHost
from tests import diagnose_cases

NEWS = b"[2026-11-29 17:44:00 TP0] Memory pool end. avail mem=18.33 GB\n"
PROBED = b'[2026-11-29 17:45:00] INFO:     127.0.0.1:50510 - "GET /health HTTP/1.1" 503 Service Unavailable\n'


def test_silence_is_counted_from_the_last_news() -> None:
    """Answers to health probes are no news: the log's own stamps tell how long before the last of them it spoke."""
    log = read_log("x", NEWS + PROBED, changed=60)

    assert log.silent_s == 120
    assert log.waited_s == 60
    assert log.news == (NEWS.decode().strip(),)


def test_silence_without_probes_is_the_files_age() -> None:
    """The last line is news: the file's own time is exact, and lines without a stamp count."""
    log = read_log("x", NEWS + b"/opt/x.py:5: UserWarning: y\n", changed=7.5)

    assert log.silent_s == 7.5


def test_the_warmups_own_request_is_news() -> None:
    """A milestone counts as news although it reads like an answer to a probe."""
    asked = b'[2026-11-29 17:44:30] INFO:     127.0.0.1:50508 - "GET /model_info HTTP/1.1" 200 OK\n'

    log = read_log("x", NEWS + asked + PROBED, changed=30)

    assert log.silent_s == 60


@pytest.mark.parametrize("zone_h", [-8, 0, 5.5])
def test_stamps_of_another_time_zone(zone_h: float) -> None:
    """Probes' answers without a stamp, and a server in another time zone: its first stamp tells the zone."""
    epoch = datetime(2026, 11, 29, 17, 44, tzinfo=timezone.utc).timestamp() - zone_h * 3600
    unstamped = b'INFO:     127.0.0.1:50510 - "GET /health HTTP/1.1" 503 Service Unavailable\n'

    log = read_log("x", NEWS + unstamped, now=epoch + 300, started=epoch - 20, changed=0.2)

    assert log.silent_s == 300


@pytest.mark.parametrize(
    "line,noise",
    [
        ('INFO:     127.0.0.1:1 - "GET /health_generate HTTP/1.1" 200 OK', True),
        ('INFO:     127.0.0.1:1 - "GET /v1/models HTTP/1.1" 200 OK', True),
        ('INFO:     127.0.0.1:1 - "GET /v1/loads HTTP/1.1" 200 OK', True),
        ('INFO:     127.0.0.1:1 - "GET /get_load HTTP/1.1" 200 OK', True),
        ("Endpoint '/get_load' is deprecated and will be removed in a future version.", True),
        ('INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK', False),
        ("Health check failed. Server couldn't get a response from detokenizer", True),
        ("Scheduler hit an exception: Traceback (most recent call last):", False),
    ],
)
def test_noise(line: str, noise: bool) -> None:
    """Only what answers whoever asks, or complains 20 s later that nobody could: asking makes no hang young."""
    assert is_noise(line) is noise


def stack(*names: str) -> Stack:
    """Functions from the outermost inwards."""
    return Stack("MainThread", True, True, tuple(Frame(n, "sglang/srt/m.py", 1) for n in reversed(names)))


def test_the_rank_outside_the_common_frame() -> None:
    """Seven ranks wait in a collective, one is elsewhere: the common frame is theirs, the eighth is named."""
    ranks = {rank: stack("loop", "run_batch", "forward", "all_reduce") for rank in range(7)}
    ranks[7] = stack("loop", "run_batch", "forward", "save_to_disk")

    merged = merge(ranks)

    assert merged is not None
    assert (merged.frame.name, merged.there) == ("all_reduce", tuple(range(7)))
    assert {rank: frame.name for rank, frame in merged.elsewhere.items()} == {7: "save_to_disk"}


def test_two_groups_without_a_majority_meet_where_they_part() -> None:
    """Half and half: the deepest frame that all share is told, nobody is blamed."""
    merged = merge({0: stack("loop", "run_batch", "left"), 1: stack("loop", "run_batch", "right")})

    assert merged is not None
    assert (merged.frame.name, merged.there, dict(merged.elsewhere)) == ("run_batch", (0, 1), {})


def test_no_stacks_no_picture() -> None:
    """Without stacks nothing is claimed."""
    assert merge({}) is None


@pytest.mark.parametrize(
    "names,what",
    [
        (("event_loop_normal", "recv_requests", "broadcast_pyobj"), "idle"),
        (("event_loop_overlap", "run_batch", "forward_batch_generation"), "forward"),
        (("run_scheduler_process", "Scheduler.__init__", "ModelRunner.load_model"), "weights"),
        (("run_scheduler_process", "Scheduler.__init__", "init_torch_distributed", "_create_c10d_store"), "rendezvous"),
        (("nobody_knows",), "?"),
    ],
)
def test_what_a_rank_is_doing(names: tuple[str, ...], what: str) -> None:
    """By the functions in its stack."""
    assert doing(stack(*names)) == what


def test_secrets_do_not_reach_a_file() -> None:
    """Keys and tokens are masked in arguments, in the log's copy of them, and in headers."""
    content = {
        "argv": ["python", "--api-key", "s3cr3t-value", "--tp", "2"],
        "log": "server_args=ServerArgs(api_key='s3cr3t-value', tp_size=2) HF_TOKEN=hf_abcdefghij Bearer s3cr3t-value",
        "n": 1,
    }

    text = json.dumps(redact(content))

    assert "s3cr3t" not in text and "hf_abc" not in text
    assert "tp_size=2" in text and '"2"' in text
    assert redact("api_key=None") == "api_key=None"


def test_evidence_kept_gives_the_same_verdict() -> None:
    """A file made from raw evidence is judged as the evidence was."""
    raw = diagnose_cases.raw(diagnose_cases.load("seeds-hang"))

    evidence = unpack(pack(raw, run=None, host="rtx8"), name="x")

    verdict = judge(evidence)
    assert (verdict.name, verdict.host) == ("warmup-deadlock-busy-wait", "rtx8")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"schema": "other/1"}', b"\x00\xff"])
def test_another_file_is_no_evidence(data: bytes) -> None:
    """Whatever else is given is refused with a word on what makes one."""
    with pytest.raises(BadDataError) as caught:
        unpack(data, name="x.json")

    assert "x.json" in caught.value.message


def _process(*looks: tuple[tuple[str, int], ...], spins: bool) -> Process:
    activity = Activity(
        100 if spins else 0, 100 if spins else 0, 0, {"running" if spins else "202": 20}, "0", 0, 0, 0, 0, 0
    )
    stacks = tuple(
        (Stack("MainThread", True, True, tuple(Frame(n, "sglang/x.py", at) for n, at in look)),) for look in looks
    )
    return Process(1, "x", (), "scheduler", 0, "R" if spins else "S", 9.0, {}, activity=activity, stacks=stacks)


@pytest.mark.parametrize(
    "first,second,spins,still",
    [
        ((("spin", 43), ("load", 9)), (("spin", 43), ("load", 9)), True, True),
        ((("spin", 43), ("load", 9)), (("spin", 44), ("load", 9)), True, True),
        ((("ready", 3), ("spin", 44), ("load", 9)), (("spin", 43), ("load", 9)), True, True),
        ((("mlp", 3), ("layer", 44), ("load", 9)), (("norm", 4), ("layer", 50), ("load", 9)), True, False),
        ((("wait", 43), ("load", 9)), (("wait", 43), ("load", 9)), False, True),
        ((("wait", 43), ("load", 9)), (("wait", 44), ("load", 9)), False, False),
        ((), (("wait", 44), ("load", 9)), True, False),
    ],
)
def test_what_stands_still(
    first: tuple[tuple[str, int], ...], second: tuple[tuple[str, int], ...], spins: bool, still: bool
) -> None:
    """A loop that spins runs through its own lines and its helpers; a rank that waits does not change its line."""
    assert _process(first, second, spins=spins).still is still
    assert _process(second, first, spins=spins).still is still
    assert _process(first, spins=spins).still is None


@pytest.mark.parametrize(
    "could_not,budgets",
    [
        ([], [5.0]),
        ([{"probe": "strace", "why": "not-needed"}, {"probe": "http", "why": "timed-out"}], [5.0]),
        ([{"probe": "stacks", "why": "timed-out"}], [5.0, 20.0]),
        ([{"probe": "strace", "why": "timed-out"}], [5.0, 20.0]),
    ],
)
def test_a_host_without_time_is_looked_at_once_more(could_not: list[dict[str, str]], budgets: list[float]) -> None:
    """The looks that decide did not end in time: once more, with four times the budget, and only once."""
    asked: list[float] = []

    class Busy:
        host = LocalHost("here")

        def call(self, _verb: str, *, budget_s: float, **_: object) -> dict[str, object]:
            asked.append(budget_s)
            return {"could_not": could_not}

    probe(Busy(), None)  # type: ignore[arg-type]

    assert asked == budgets
