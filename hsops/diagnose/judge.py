"""The order of the rules, and ``judge``: evidence in, verdict out. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from hsops.core.secret import without_keys
from hsops.diagnose import (
    rules_dumped,
    rules_ended,
    rules_gpu,
    rules_jit,
    rules_job,
    rules_log,
    rules_moving,
    rules_partial,
    rules_requests,
    rules_serving,
    rules_stuck,
)
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.knowledge import filled
from hsops.diagnose.verdict import Verdict

Rule = Callable[[Evidence], Verdict | None]

RULES: tuple[Rule, ...] = (
    # what is certain whatever else is seen
    rules_job.queued,
    rules_job.suspended,
    rules_job.ended_by_scheduler,
    rules_gpu.left_on_gpu,
    rules_ended.nothing_runs,
    rules_ended.stopped,
    rules_ended.host_lost,
    rules_ended.never_started,
    rules_gpu.out_of_memory,
    rules_log.named_cause,
    rules_log.gpu_fault,
    rules_serving.port_taken,
    rules_gpu.backend_of_datacenter,
    # who is gone
    rules_ended.rank_died,
    rules_ended.detokenizer_died,
    rules_ended.launcher_gone,
    rules_log.peer_died,
    # it answers, or did once
    rules_serving.dump_folder,
    rules_gpu.wrong_kernel,
    rules_requests.slow_copy,
    rules_requests.lost,
    rules_serving.healthy,
    rules_moving.shutting_down,
    rules_serving.under_load,
    rules_serving.tokenizer_blocked,
    rules_serving.idle_poll,
    rules_requests.over_budget,
    rules_gpu.wedged,
    rules_gpu.custom_all_reduce,
    rules_gpu.driver_spins,
    rules_serving.hung_serving,
    rules_gpu.nccl_names_the_rank,
    rules_log.heartbeat,
    # on its way: what moves first, then what does not
    rules_partial.desync,
    rules_stuck.lost_collective,
    rules_jit.hub_stall,
    rules_jit.stale_lock,
    rules_jit.stuck_in_jit,
    rules_moving.compiling,
    rules_moving.graph_capture,
    rules_stuck.busy_wait,
    rules_stuck.forward_stuck,
    rules_gpu.preloaded,
    rules_stuck.rendezvous,
    rules_moving.loading,
    rules_moving.repacking,
    rules_stuck.load_hang,
    rules_stuck.silent_after_load,
    rules_requests.wrong_endpoint,
    rules_moving.starting,
    # a log and nothing else
    rules_dumped.dumped,
    rules_serving.said_ready,
    rules_partial.compiling,
    rules_partial.graphs,
    rules_partial.weights,
    rules_partial.proven_silence,
)


def judge(evidence: Evidence) -> Verdict:
    """The first rule that fits gives the verdict; without one it abstains."""
    found = (rule(evidence) for rule in RULES)
    verdict = next((v for v in found if v), None) or rules_partial.abstain(evidence)
    cited = tuple(replace(finding, text=without_keys(finding.text)) for finding in verdict.evidence)
    remedy, confirm = filled(verdict)
    host = evidence.host_of(verdict.rank)
    if evidence.hosts and remedy.startswith("kill "):  # pids are a host's own
        remedy = f"on {host}: {remedy}"
    verdict = replace(verdict, remedy=remedy, next_probe=confirm)
    summary = verdict.summary
    if evidence.hosts and verdict.rank is not None:
        summary = re.sub(rf"\bTP{verdict.rank}\b(?! on )", f"TP{verdict.rank} on {host}", summary)
    return replace(verdict, host=verdict.host or host, summary=without_keys(summary), evidence=cited)
