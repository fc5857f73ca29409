"""Rules about requests: lost, refused, too large, or slow in a server that is otherwise well."""

from __future__ import annotations

import re

from hsops.diagnose import cite
from hsops.diagnose.evidence import Evidence
from hsops.diagnose.log_text import cut
from hsops.diagnose.stages import patience
from hsops.diagnose.verdict import Finding, Verdict

_POOL = re.compile(r"max_total_num_tokens=(\d+)[^\n]*context_len=(\d+)")
_CALL = re.compile(r'"POST /(v1/\S*|generate|invocations)\S* HTTP/[\d.]+" (?!200)\d+')
_MODELS = re.compile(r'"GET /v1/models\S* HTTP/[\d.]+" 200')
_QUIET_S = 60.0  # an idle keep-alive connection lives 5 s in SGLang: one that is older waits for an answer
_COPIES = frozenset({"tolist", "cpu", "process_batch_result_decode", "process_batch_result_prefill"})


def lost(ev: Evidence) -> Verdict | None:
    """/health says 200 and nothing runs, while clients wait: two tokenizer workers lose answers."""
    workers = ev.log.summary.args.get("tokenizer_worker_num", "1") if ev.log else "1"
    waiting = ev.port.clients if ev.port else 0
    if not ev.healthy or not waiting or ev.silent_s < _QUIET_S or workers in ("0", "1"):
        return None
    return Verdict(
        "requests-lost-health-ok",
        "medium",
        f"/health says 200, no batch runs, and {waiting} connections wait for an answer",
        (Finding("http", f"{waiting} connections open, {workers} tokenizer workers"), *cite.everything(ev)),
        remedy="args.tokenizer-worker-num: 1",
        next_probe="do the clients' requests end when they are sent again?",
    )


def over_budget(ev: Evidence) -> Verdict | None:
    """The loop goes round and takes nothing in: a request may be longer than the whole pool."""
    pool = _POOL.findall(ev.log.text) if ev.log else []
    if not (ev.live and ev.alive and ev.ready and ev.ranks) or ev.healthy or ev.health is None or not pool:
        return None
    tokens, context = map(int, pool[-1])
    if tokens >= context or not all(p.polls or p.doing in ("idle", "loop") for p in ev.ranks.values()):
        return None
    return Verdict(
        "request-over-budget-silent",
        "medium",
        f"the ranks take no work in, and a request may be longer ({context:,}) than the KV pool ({tokens:,})",
        cite.everything(ev),
        remedy=f"args.context-length: {tokens}, or smaller max_new_tokens, or a larger mem-fraction-static",
        next_probe="abort the oldest request (POST /abort_request): does the queue move?",
        alternatives=("requests-lost-health-ok",),
    )


def wrong_endpoint(ev: Evidence) -> Verdict | None:
    """It is on its way, and somebody took /v1/models for readiness: it says 200 before the warm-up is over."""
    if not (ev.live and ev.alive) or ev.ready or ev.healthy or not ev.log or ev.silent_s >= patience(ev):
        return None
    early = _CALL.search(ev.log.text)
    if not early or not _MODELS.search(ev.log.text):
        return None
    return Verdict(
        "readiness-wrong-endpoint",
        "medium",
        "it still warms up, and requests come already: whoever sends them took /v1/models for readiness",
        (Finding("log", cut(early.group(0))), *cite.everything(ev)),
        remedy="poll /health: 503 until the warm-up is over, then 200",
        alternatives=("starting",),
    )


def slow_copy(ev: Evidence) -> Verdict | None:
    """Every step copies hidden states to the host, tensor by tensor."""
    if not ev.healthy or not ev.log or ev.log.summary.args.get("enable_return_hidden_states") != "True":
        return None
    there = [p for p in ev.ranks.values() if p.busy and p.still and p.stack
             and any(frame.function in _COPIES for frame in p.stack.frames[:3])]  # fmt: skip
    if not there:
        return None
    return Verdict(
        "hidden-states-slow-copy",
        "medium",
        f"{there[0].label} copies hidden states to the host in every step: that takes 20 times as long",
        cite.everything(ev),
        remedy="hsops deploy with hs-dump: it copies beside the forward pass; or return them for few requests",
        next_probe="the same requests without return_hidden_states",
    )
