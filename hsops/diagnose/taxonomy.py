"""Every verdict that ``hsops diagnose`` may give, by family, with what it means. The ids are public (JSON, docs):
rename none. docs/reference/verdicts.md shows this table.

``unknown`` abstains and names the next probe; it beats a wrong class.
"""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN = "unknown"

FAMILIES: Mapping[str, Mapping[str, str]] = {
    "arch-unsupported": {
        "arch-not-supported": "kernels or backends that this GPU cannot run",
        "triton-smem-out-of-resources": "a Triton kernel wants more shared memory than the GPU has",
        "wrong-kernel-slow": "it works at a fraction of the speed: a fallback kernel",
    },
    "crash": {
        "bad-flag": "the command line was refused",
        "crash-under-load": "single requests pass, load ends it",
        "nan-output": "NaN or infinity reached the sampler",
        "peer-rank-died": "ranks complain of one that went away without a word",
        "scheduler-died-exception": "a scheduler raised; terminal even where /health still says 200",
    },
    "gpu-memory": {
        "cuda-oom-graph-capture": "out of GPU memory while CUDA graphs are captured",
        "cuda-oom-kv": "no GPU memory left for the KV cache",
        "cuda-oom-nccl-buffers": "out of GPU memory in NCCL",
        "cuda-oom-weights": "out of GPU memory while weights come in",
        "false-gpu-occupied": "the memory check trips on the server's own buffer",
        "gpu-occupied": "somebody else holds memory on the GPU",
    },
    "gpu-pcie-hw": {
        "gpu-driver-spin": "the GPU driver spins",
        "gpu-fell-off-bus": "the GPU left the PCIe bus",
        "gpu-wedged-needs-reset": "GPU at 100 % without a process",
        "host-hard-freeze-pcie": "the whole host froze",
        "xid-gsp-timeout": "the GPU's firmware does not answer (Xid)",
        "xid-kernel-fault": "a GPU fault ended a kernel (Xid)",
    },
    "health-semantics": {
        "health-false-negative-under-load": "/health says no while batches go on: slow, not stuck",
        "readiness-wrong-endpoint": "an endpoint was taken for readiness that says 200 too early",
        "request-over-budget-silent": "a request that can never be admitted",
        "requests-lost-health-ok": "/health is 200 and requests hang",
    },
    "hidden-states": {
        "aux-hidden-capture-count": "another number of captured layers than was asked for",
        "aux-hidden-not-captured": "layers were asked for and not captured",
        "aux-hidden-off-by-one": "a boundary is one layer off",
        "hidden-states-corrupt": "a dump that is whole and wrong",
        "hidden-states-memory-growth": "captured states pile up in memory",
        "hidden-states-nan": "NaN in captured states",
        "hidden-states-slow-copy": "copies to the host slow every step",
    },
    "host-limits": {
        "disk-full": "no space left on a disk",
        "shm-invalid-argument": "shared memory refuses a segment although /dev/shm has room",
        "shm-too-small": "shared memory is too small (/dev/shm has 64 MB in Docker by default)",
        "ulimit-memlock": "the limit of locked memory is too small",
    },
    "host-memory-kill": {
        "host-memory-check-false": "SGLang counts free host memory wrongly",
        "host-memory-overcommit": "more host memory is asked for than there is",
        "scheduler-killed-oom": "the kernel's OOM killer ended a rank, or that is the usual cause of what is seen",
    },
    "hub-tokenizer": {
        "hub-offline-remote-code": "offline mode and code from the hub",
        "hub-offline-stall": "it waits for a hub that cannot be reached",
        "trust-remote-code-needed": "the model's own code needs consent",
    },
    "install-driver": {
        "driver-cuda-mismatch": "the driver is older than the CUDA it must run",
        "nvml-driver-mismatch": "the driver was upgraded under the loaded module",
        "sgl-kernel-load-failed": "sgl-kernel does not load",
    },
    "jit-compile": {
        "autotune-rank-desync-deadlock": "some ranks tune while others found tuned kernels",
        "autotune-slow-crawl": "autotuning takes an hour",
        "jit-cache-on-nfs": "a JIT cache on a network file system",
        "jit-compiling-killed-by-watchdog": "the watchdog ended a compile",
        "jit-loading-stuck": "JIT kernels do not finish loading",
        "jit-stale-cache": "compiled kernels of another installation",
        "jit-stale-lock": "a lock file that nobody holds",
        "jit-toolchain-missing": "no compiler on the host",
        "toolchain-too-old-for-arch": "the compiler does not know this GPU",
    },
    "nccl-other": {
        "nccl-collective-timeout": "torch's watchdog ended a collective",
        "nccl-cumem-required": "NCCL needs NCCL_CUMEM_ENABLE=1 here",
        "nccl-init-hang-preload-interposer": "a preloaded library blocks NCCL's start",
        "nccl-too-old-for-arch": "NCCL is too old for this GPU",
        "node-unreachable": "a host of a server over several cannot be reached",
        "rendezvous-hang": "ranks do not find each other",
    },
    "negative-healthy": {
        "healthy-idle-busy-poll": "an idle scheduler at full CPU: by design",
        "healthy-slow-start": "a slow start that ended well",
    },
    "negative-slow-not-hung": {
        "graph-capture-slow-not-hung": "CUDA graph capture: 7 s to 22 min",
        "jit-compiling-not-hung": "it compiles kernels: minutes without a line",
    },
    "ops-environment": {
        "docker-syncfs-stall": "docker waits for dirty pages",
        "ssh-launch-holds-stdin": "the launching ssh holds the server's standard input",
        "tool-blocked-ptrace": "a tool may not look (ptrace)",
    },
    "p2p-collective": {
        "custom-allreduce-deadlock": "custom all-reduce deadlocks",
        "custom-allreduce-ipc-error": "custom all-reduce cannot share memory",
        "custom-allreduce-p2p-hang": "custom all-reduce waits for a peer that P2P does not reach",
        "custom-allreduce-unsupported": "custom all-reduce without peer access",
        "nccl-p2p-hang": "the first collective hangs: P2P does not work as NCCL believes",
    },
    "ports-orphans": {
        "kill-tree-too-broad": "a clean-up killed more than its own",
        "orphan-holds-gpu": "a process of an old run holds GPU memory",
        "port-in-use": "the port belongs to somebody else",
        "port-race": "a port was taken between choosing and binding it",
    },
    "runtime-deadlock": {
        "collective-deadlock": "ranks wait in a collective for one that is elsewhere, or for each other",
        "decode-step-hang": "a decode step does not come back",
        "detokenizer-stalled": "the detokenizer is stopped or stuck",
        "engine-loop-hang": "the engine's loop does not go round",
        "first-request-hang": "the first request does not come back",
        "graph-capture-hang": "graph capture does not come back",
        "scheduler-deadlock": "schedulers send nothing any more",
        "watchdog-timeout": "SGLang's watchdog ended it",
        "zmq-send-blocked": "a rank is blocked sending to a peer that does not read",
    },
    "slow-load": {
        "hang-in-weight-loading": "nothing moves while weights load",
        "post-load-silence-unresolved": "silent after the weights, cause unknown",
        "rank-straggler-load": "one rank does not finish its weights",
        "weights-loading-slow": "weights come in slowly",
        "weights-loading-slow-mmap-netfs": "weights come in by random page faults over a network file system",
        "weights-post-processing-slow": "weights are repacked: minutes after the bar is full",
    },
    "warmup": {
        "warmup-deadlock-busy-wait": "ranks spin in one place after the weights; the port is closed, or says 503",
        "warmup-failed": "the warm-up request failed",
        "warmup-forward-stuck": "the first forward pass sleeps and does not come back",
        "warmup-via-proxy": "a proxy answers the warm-up request",
    },
    "state": {
        "healthy": "/health says 200",
        "healthy-loaded": "/health says 200, requests are in work",
        "starting": "before or after the weights, on its way",
        "loading": "weights are on their way",
        "stopping": "it was told to end and is about it",
        "not-running": "no process of it, and nothing went wrong",
        "queued": "its job waits for a place in Slurm's queue",
        "job-suspended": "Slurm has stopped its job's processes until it resumes them",
    },
    "process-control": {
        "rank-stopped": "a rank is stopped: SIGSTOP, a frozen cgroup, a debugger",
        "rank-killed": "a signal ended a rank, not the OOM killer",
        "launcher-killed": "launch_server was killed",
        "job-ended-by-scheduler": "Slurm ended its job: time limit, memory, a node, preemption",
        "detokenizer-died": "the detokenizer is gone",
        "tokenizer-blocked": "launch_server or a tokenizer worker is stopped",
    },
    "configuration": {
        "model-path-missing": "there is no model where the inventory says",
        "dump-dir-unwritable": "ranks may not write into the dump folder",
        "dump-dir-full": "no room in the dump folder",
        "patch-identity-mismatch": "other capture code is loaded than is deployed",
    },
    "rendezvous": {
        "rank-never-joined": "a rank never came to the rendezvous",
        "nccl-no-socket-interface": "no network interface for NCCL",
    },
    "collective": {
        "collective-mismatch": "ranks issued different collectives; GPUs at 100 % and idle power",
    },
}

_FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names}

MOVING = frozenset(
    [
        *("healthy", "healthy-loaded", "starting", "loading"),
        *FAMILIES["negative-healthy"],
        *FAMILIES["negative-slow-not-hung"],
        *("weights-loading-slow", "weights-loading-slow-mmap-netfs", "weights-post-processing-slow"),
        *("health-false-negative-under-load", "readiness-wrong-endpoint"),
        *("wrong-kernel-slow", "hidden-states-slow-copy"),
    ]
)
"""Classes of a server that works or is on its way: nothing hangs, the launch goes on."""


def meaning(name: str) -> str:
    """One line on what a class means.

    Raises:
        KeyError: there is no such class.
    """
    return FAMILIES[_FAMILY_OF[name]][name]


def family_of(name: str) -> str:
    """The family of a class; ``unknown`` is its own.

    Raises:
        KeyError: there is no such class.
    """
    return UNKNOWN if name == UNKNOWN else _FAMILY_OF[name]
