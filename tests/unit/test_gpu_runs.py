"""Recorded runs of a real SGLang on H200s, kept as bundles in ``tests/cases/gpu``: right from everything, and from the
log alone right or open.

SGLang 0.5.12.post1, two GPUs, several servers at once; what begins with H is of ``tests/gpu/run.sh hangs`` on one GPU,
with P of two ranks that shared one (``tests/gpu/one_card.py``).
The state is that of one look; of the hangs (D, G, R0) the log goes on to the moment before they were ended, with good
runs of the same machine as baseline.
"""

from __future__ import annotations

import tarfile
from dataclasses import replace

import pytest

from hsops.diagnose import Verdict, judge
from hsops.diagnose.bundle import unpack
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.reading import from_log
from hsops.diagnose.taxonomy import MOVING, UNKNOWN
from tests.diagnose_cases import CASES

FOLDER = CASES / "gpu"
NOT_YET_IN_THE_LOG = {"H-port"}
FOUND = {  # run -> class and rank from all that was seen, and what the log alone may say
    "A-healthy": ("healthy", None, {"healthy-slow-start"}),
    "Agraph-healthy": ("healthy", None, {"healthy-slow-start"}),
    "G0-healthy": ("healthy", None, {"healthy-slow-start"}),
    "B2": ("aux-hidden-not-captured", 0, {"aux-hidden-not-captured"}),
    "C-stopped": ("rank-stopped", 0, {"loading"}),
    "C-stopped-healthy": ("rank-stopped", 0, {"health-false-negative-under-load"}),
    "D-later": ("warmup-deadlock-busy-wait", None, {UNKNOWN}),
    "E1": ("rank-killed", 0, {"scheduler-killed-oom"}),
    "E5-main": ("launcher-killed", None, {"launcher-killed"}),
    "F1-alive": ("port-in-use", None, {"port-in-use"}),
    "F2-high": ("cuda-oom-kv", 0, {"cuda-oom-kv"}),
    "F2-low": ("cuda-oom-kv", 0, {"cuda-oom-kv"}),
    "F3": ("model-path-missing", None, {"model-path-missing"}),
    "G-later": ("rank-never-joined", 1, {UNKNOWN}),
    "H-imports": ("starting", None, {UNKNOWN}),
    "H-kernel": ("health-false-negative-under-load", None, {"healthy-slow-start"}),  # a second after the last answer
    "H-killed": ("rank-killed", 0, {"scheduler-killed-oom"}),
    "H-little-memory": ("cuda-oom-kv", 0, {"cuda-oom-kv"}),  # beside ranks of three other servers on its GPU
    "H-memory": ("cuda-oom-kv", 0, {"cuda-oom-kv"}),
    "H-path": ("model-path-missing", None, {"model-path-missing"}),
    "H-port": ("port-in-use", None, {UNKNOWN}),  # before the server has tried to listen
    "H-spin": ("warmup-deadlock-busy-wait", None, {UNKNOWN}),
    "H-stopped": ("rank-stopped", 0, {"loading"}),
    "H-stopped-serving": ("rank-stopped", 0, {"healthy-slow-start"}),
    "H-untitled": ("starting", None, {UNKNOWN}),  # HTTP is up before the detokenizer has done its imports
    "P-kernel": ("collective-deadlock", 1, {"health-false-negative-under-load"}),
    "P-mismatch": ("collective-mismatch", None, {"health-false-negative-under-load"}),
    "P-never-joined": ("rank-never-joined", 1, {UNKNOWN}),
    "P-spin-all": ("scheduler-deadlock", None, {"healthy-slow-start"}),
    "P-spin-warmup": ("warmup-deadlock-busy-wait", 1, {"warmup-forward-stuck"}),
    "P-stopped-weights": ("rank-stopped", 1, {"loading"}),
    "R0-later": ("collective-mismatch", None, {UNKNOWN}),
}


def evidence(run: str) -> Evidence:
    """What a run's bundle holds."""
    return unpack((FOLDER / f"{run}.bundle").read_bytes(), name=run)


def of_log(run: str) -> Verdict:
    """The verdict by the run's log and nothing else."""
    with tarfile.open(FOLDER / f"{run}.bundle") as tar:
        file = tar.extractfile("head.log")
        assert file
        return judge(from_log("server.log", file.read()))


def test_every_bundle_has_its_verdict() -> None:
    """None lies there unread."""
    assert {path.stem for path in FOLDER.glob("*.bundle")} == set(FOUND)


@pytest.mark.parametrize("run", FOUND)
def test_class_and_rank_from_everything(run: str) -> None:
    """The class and the rank that was made to fail."""
    verdict = judge(evidence(run))

    assert (verdict.name, verdict.rank) == FOUND[run][:2]


@pytest.mark.parametrize("run", FOUND)
def test_the_log_alone_says_what_it_can(run: str) -> None:
    """The same class, or the class among the alternatives, or nothing bad of what a log cannot tell from slow."""
    verdict, (name, rank, may) = of_log(run), FOUND[run]

    assert verdict.name in may
    assert name in (verdict.name, *verdict.alternatives) or {verdict.name, name} & MOVING or run in NOT_YET_IN_THE_LOG
    assert verdict.rank in (None, rank)


def test_an_idle_scheduler_at_full_cpu_is_healthy() -> None:
    """101 % of a core, as a busy loop has; 23,000 system calls a second, which a busy loop has not."""
    seen, spins = evidence("A-healthy").ranks[0], evidence("D-later").ranks[0]

    assert seen.activity and seen.activity.cpu > 100 and seen.polls and not seen.spins
    assert spins.activity and spins.activity.cpu > 100 and spins.spins


def test_a_taken_port_hangs_and_is_told_as_a_port() -> None:
    """The launcher waits for its warm-up thread, the scheduler takes a core, /health of the stranger times out."""
    seen = evidence("F1-alive")
    verdict = judge(seen)

    assert seen.alive and seen.ranks[0].busy and str(seen.health) == "timeout"
    assert (verdict.name, verdict.hung) == ("port-in-use", False)


def test_gpus_at_full_load_and_idle_power_are_a_collective_mismatch() -> None:
    """Rank 0 stands in a compiler's frames: the driver lets it load no kernel while the collective waits."""
    seen = evidence("R0-later")

    assert seen.gpus_spin and seen.ranks[0].doing == "jit"
    assert all(rank.trace and rank.trace.rate < 3 for rank in seen.ranks.values())


def test_a_rank_that_asks_its_peers_is_no_idle_scheduler() -> None:
    """NCCL, while it starts a communicator, calls accept 23,000 times a second: that is not asking for work."""
    ranks = [evidence(run).ranks[0] for run in ("P-spin-warmup", "P-mismatch")]

    assert all(rank.asks_peers and not rank.polls and rank.trace and rank.trace.rate > 20_000 for rank in ranks)


def test_ranks_in_different_collectives_are_no_request_that_is_too_long() -> None:
    """Although this server's pool is smaller than its context, as the log said before its bundle hid that number."""
    seen = evidence("P-mismatch")
    assert seen.log
    text = seen.log.text.replace("max_total_num_tokens=***", "max_total_num_tokens=65536")

    verdict = judge(replace(seen, log=replace(seen.log, text=text)))

    assert "max_total_num_tokens=65536" in text and verdict.name == "collective-mismatch"


def test_the_line_that_each_rank_owes_is_cited() -> None:
    """Against a good run of the same server: rank 0 stands before its NCCL, rank 1 has not joined."""
    said = [f.text for f in judge(evidence("G-later")).evidence if f.source == "unlike"]

    assert said == [
        "TP0: good runs go on with: sglang is using nccl==#.#",
        "TP1: good runs go on with: Init torch distributed ends. elapsed=# s, mem usage=# GB",
    ]


def test_a_neighbours_gpu_load_is_not_ours() -> None:
    """While rank 1 did not join, another server's collective held both GPUs at 100 %."""
    seen = evidence("G-later")

    assert all(gpu.spins for gpu in seen.gpus) and not seen.gpus_spin


def test_compile_workers_do_not_count_as_compilers() -> None:
    """After its first batch torch keeps dozens of them: a healthy server has them too."""
    seen = evidence("A-healthy")

    assert sum(p.role == "compile-worker" for p in seen.processes) > 20 and seen.compilers == ()


def test_exit_codes_do_not_decide() -> None:
    """A launcher that was killed and one that ended itself over an exception both left by SIGKILL."""
    killed, raised = evidence("E5-main"), evidence("B2")

    assert killed.run and killed.run.exit and raised.run and raised.run.exit
    assert killed.run.exit.signal == raised.run.exit.signal == "SIGKILL"
    assert judge(killed).name != judge(raised).name


@pytest.mark.parametrize("run", ["C-stopped", "D-later", "G-later", "R0-later"])
def test_a_hang_leaves_no_word_of_trouble(run: str) -> None:
    """Unlike every crash: what a log of a hang says last is a step that went well."""
    log = evidence(run).log

    assert log and log.summary.cause is None and not log.summary.errors


def test_lines_of_health_probes_do_not_break_a_silence() -> None:
    """Half of D's log answers health probes: it has been silent since the warm-up began."""
    log = evidence("D-later").log

    assert log and log.answers > 50 and log.silent_s and log.silent_s > 20
