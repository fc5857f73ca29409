"""Every verdict that ``hsops diagnose`` may give. The ids are public (JSON, docs): rename none.

``unknown`` abstains and names the next probe; it beats a wrong class.
"""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN = "unknown"

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "arch-unsupported": ("arch-not-supported", "triton-smem-out-of-resources", "wrong-kernel-slow"),
    "crash": ("bad-flag", "crash-under-load", "nan-output", "peer-rank-died", "scheduler-died-exception"),
    "gpu-memory": (
        "cuda-oom-graph-capture",
        "cuda-oom-kv",
        "cuda-oom-nccl-buffers",
        "cuda-oom-weights",
        "false-gpu-occupied",
        "gpu-occupied",
    ),
    "gpu-pcie-hw": (
        "gpu-driver-spin",
        "gpu-fell-off-bus",
        "gpu-wedged-needs-reset",
        "host-hard-freeze-pcie",
        "xid-gsp-timeout",
        "xid-kernel-fault",
    ),
    "health-semantics": (
        "health-false-negative-under-load",
        "readiness-wrong-endpoint",
        "request-over-budget-silent",
        "requests-lost-health-ok",
    ),
    "hidden-states": (
        "aux-hidden-capture-count",
        "aux-hidden-not-captured",
        "aux-hidden-off-by-one",
        "hidden-states-corrupt",
        "hidden-states-memory-growth",
        "hidden-states-nan",
        "hidden-states-slow-copy",
    ),
    "host-limits": ("disk-full", "shm-invalid-argument", "shm-too-small", "ulimit-memlock"),
    "host-memory-kill": ("host-memory-check-false", "host-memory-overcommit", "scheduler-killed-oom"),
    "hub-tokenizer": ("hub-offline-remote-code", "hub-offline-stall", "trust-remote-code-needed"),
    "install-driver": ("driver-cuda-mismatch", "nvml-driver-mismatch", "sgl-kernel-load-failed"),
    "jit-compile": (
        "autotune-rank-desync-deadlock",
        "autotune-slow-crawl",
        "jit-cache-on-nfs",
        "jit-compiling-killed-by-watchdog",
        "jit-loading-stuck",
        "jit-stale-cache",
        "jit-stale-lock",
        "jit-toolchain-missing",
        "toolchain-too-old-for-arch",
    ),
    "nccl-other": (
        "nccl-collective-timeout",
        "nccl-cumem-required",
        "nccl-init-hang-preload-interposer",
        "nccl-too-old-for-arch",
        "rendezvous-hang",
    ),
    "negative-healthy": ("healthy-idle-busy-poll", "healthy-slow-start"),
    "negative-slow-not-hung": ("graph-capture-slow-not-hung", "jit-compiling-not-hung"),
    "ops-environment": ("docker-syncfs-stall", "ssh-launch-holds-stdin", "tool-blocked-ptrace"),
    "p2p-collective": (
        "custom-allreduce-deadlock",
        "custom-allreduce-ipc-error",
        "custom-allreduce-p2p-hang",
        "custom-allreduce-unsupported",
        "nccl-p2p-hang",
    ),
    "ports-orphans": ("kill-tree-too-broad", "orphan-holds-gpu", "port-in-use", "port-race"),
    "runtime-deadlock": (
        "collective-deadlock",
        "decode-step-hang",
        "detokenizer-stalled",
        "engine-loop-hang",
        "first-request-hang",
        "graph-capture-hang",
        "scheduler-deadlock",
        "watchdog-timeout",
        "zmq-send-blocked",
    ),
    "slow-load": (
        "hang-in-weight-loading",
        "post-load-silence-unresolved",
        "rank-straggler-load",
        "weights-loading-slow",
        "weights-loading-slow-mmap-netfs",
        "weights-post-processing-slow",
    ),
    "warmup": ("warmup-deadlock-busy-wait", "warmup-failed", "warmup-forward-stuck", "warmup-via-proxy"),
    "state": ("healthy", "healthy-loaded", "starting", "loading", "stopping", "not-running"),
    "process-control": ("rank-stopped", "rank-killed", "launcher-killed", "detokenizer-died", "tokenizer-blocked"),
    "configuration": ("model-path-missing", "dump-dir-unwritable", "dump-dir-full", "patch-identity-mismatch"),
    "rendezvous": ("rank-never-joined", "nccl-no-socket-interface"),
    "collective": ("collective-mismatch",),
}

_FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names}

MOVING = frozenset(
    [
        *("healthy", "healthy-loaded", "starting", "loading"),
        *FAMILIES["negative-healthy"],
        *FAMILIES["negative-slow-not-hung"],
        *("weights-loading-slow", "weights-loading-slow-mmap-netfs", "weights-post-processing-slow"),
        "health-false-negative-under-load",
    ]
)
"""Classes of a server that works or is on its way: nothing hangs, the launch goes on."""


def family_of(name: str) -> str:
    """The family of a class; ``unknown`` is its own.

    Raises:
        KeyError: there is no such class.
    """
    return UNKNOWN if name == UNKNOWN else _FAMILY_OF[name]
