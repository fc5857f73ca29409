"""What is known of causes in a server that starts or runs: class -> what to do, what would confirm it."""

from __future__ import annotations

_AGAIN = "hsops launch --replace --wait-healthy"
_STACKS = "hsops diagnose again: do the stacks move?"

RUN: dict[str, tuple[str, str]] = {
    # crash
    "bad-flag": ("correct servers.<name>.args; flags differ between versions", "hsops launch --check"),
    "crash-under-load": ("the exception's own cause; fewer max-running-requests meanwhile", "the same load, by halves"),
    "nan-output": ("another GEMM or attention backend; clear JIT caches", "the same prompt on another backend"),
    "peer-rank-died": ("how that rank ended: hsops status, dmesg", "the supervisor's record of each rank"),
    "scheduler-died-exception": ("read the traceback: hsops logs", "does it go away: launch --without-patches"),
    # health-semantics
    "health-false-negative-under-load": (
        "SGLANG_HEALTH_CHECK_TIMEOUT above 20 s, or fewer long prompts at once; no restart",
        "Prefill batch lines go on, and last_heartbeat moves",
    ),
    "readiness-wrong-endpoint": ("poll /health", "/v1/models says 200 while /health says 503"),
    "request-over-budget-silent": (
        "context-length within max_total_num_tokens, or smaller max_new_tokens",
        "abort the oldest request: does the queue move?",
    ),
    "requests-lost-health-ok": ("tokenizer-worker-num: 1", "connections open, no request in work, /health 200"),
    # hidden-states
    "aux-hidden-capture-count": ("as many layers as the draft was trained on", "the shapes that the line names"),
    "aux-hidden-not-captured": ("layers set on the inner language model; or hs-dump", "hsops verify --live"),
    "aux-hidden-off-by-one": ("boundary k is the stream before layer k", "hsops verify --live against the reference"),
    "hidden-states-corrupt": (
        "eager, without padding; a fixed version",
        "hsops verify --live: no look from outside tells right states from wrong ones",
    ),
    "hidden-states-memory-growth": ("write them away at once: hs-dump", "memory of the scheduler over an hour"),
    "hidden-states-nan": ("find the sample; the model overflows on it", "hsops verify DIR"),
    "hidden-states-slow-copy": ("hs-dump copies beside the forward pass", "the same requests without hidden states"),
    # nccl-other
    "nccl-collective-timeout": (
        "find the rank whose lines end first; a larger dist-timeout for slow loads",
        "hsops logs",
    ),
    "nccl-cumem-required": ("NCCL_CUMEM_ENABLE=1", "all_reduce_perf with and without it"),
    "nccl-init-hang-preload-interposer": ("without the preloaded library", "tr '\\0' '\\n' < /proc/PID/environ"),
    "nccl-too-old-for-arch": ("pip install -U nvidia-nccl-cu12", "all_reduce_perf with the same NCCL"),
    "node-unreachable": ("bring that host back, then hsops launch --replace", "hsops --host NAME doctor"),
    "rendezvous-hang": ("dist-init-addr that every node reaches; GLOO_SOCKET_IFNAME", "nc -zv of that address"),
    # negative
    "healthy-idle-busy-poll": (
        "nothing; sleep-on-idle: true saves the power",
        "thousands of polls a second: strace -c",
    ),
    "healthy-slow-start": ("nothing", "hsops diagnose"),
    "graph-capture-slow-not-hung": ("wait up to 22 minutes; smaller cuda-graph-max-bs", _STACKS),
    "jit-compiling-not-hung": ("wait; keep the JIT caches between launches", "compilers in the tree: hsops diagnose"),
    # p2p-collective
    "custom-allreduce-deadlock": (
        "disable-custom-all-reduce: true, no enable-pdmux",
        "it does not come back without it",
    ),
    "custom-allreduce-ipc-error": ("disable-custom-all-reduce: true", "nvidia-smi topo -p2p r"),
    "custom-allreduce-p2p-hang": ("disable-custom-all-reduce: true", "it starts without it"),
    "custom-allreduce-unsupported": ("disable-custom-all-reduce: true", "nvidia-smi topo -p2p r"),
    "nccl-p2p-hang": (
        "nccl: pcie-dram and disable-custom-all-reduce: true; for good iommu=pt or off, ACS off",
        "all_reduce_perf of nccl-tests, with and without NCCL_P2P_DISABLE=1; hsops doctor on ACS",
    ),
    # runtime-deadlock
    "collective-deadlock": (_AGAIN, "two dumps alike on all ranks; who is not in the collective?"),
    "decode-step-hang": (_AGAIN, _STACKS),
    "detokenizer-stalled": (_AGAIN, "its state and stack: hsops diagnose"),
    "engine-loop-hang": (_AGAIN, _STACKS),
    "first-request-hang": (_AGAIN, "compilers in the tree? then it is slow, not hung"),
    "graph-capture-hang": ("disable-cuda-graph: true tells whether it is the capture", _STACKS),
    "scheduler-deadlock": (_AGAIN, "last_heartbeat in the log does not move any more"),
    "watchdog-timeout": ("read the stacks that follow the line; install py-spy", "hsops logs, from this line on"),
    "zmq-send-blocked": (_AGAIN, "who should read: does that peer live?"),
    # slow-load
    "hang-in-weight-loading": ("the disk or mount of the model: dmesg, ls, dd", "bytes and faults of a minute"),
    "post-load-silence-unresolved": ("what is new since the last good run; without patches", _STACKS),
    "rank-straggler-load": ("that rank's disk and memory; a larger dist-timeout", "bytes and faults of that rank"),
    "weights-loading-slow": ("wait; a local disk; weight-loader-prefetch-checkpoints", "MiB/s in hsops diagnose"),
    "weights-loading-slow-mmap-netfs": ("weight-loader-disable-mmap: true, or a local copy", "major faults a second"),
    "weights-post-processing-slow": ("wait", "'Load weight end' by rank; CPU of those that have not said it"),
    # warmup
    "warmup-deadlock-busy-wait": (
        "what changed in the model's forward; hsops launch --replace --without-patches",
        "single bytes to an eventfd and no other system call: strace of a rank",
    ),
    "warmup-failed": ("the scheduler's exception above the line", "hsops logs"),
    "warmup-forward-stuck": ("hsops launch --replace --without-patches", _STACKS),
    "warmup-via-proxy": ("no_proxy=127.0.0.1,localhost in env", "env | grep -i proxy"),
    # state
    "healthy": ("nothing", "a request of your own"),
    "healthy-loaded": ("nothing", "a request of your own"),
    "starting": ("wait", "hsops diagnose again in half a minute"),
    "loading": ("wait", "bytes and faults: hsops diagnose again"),
    "stopping": ("wait, or hsops stop", "hsops status"),
    "queued": ("hsops launch --wait-healthy waits for its place", "squeue --start on the login node"),
    "job-suspended": ("scontrol resume, by whoever may, or wait", "scontrol show job on the login node"),
    "not-running": ("hsops launch --wait-healthy", "hsops status"),
    # process-control
    "rank-stopped": ("kill -CONT PID", "state T in /proc/PID/stat; TracerPid"),
    "rank-killed": (_AGAIN, "who sent the signal: audit log, journalctl, the orchestrator"),
    "job-ended-by-scheduler": ("raise what its job asks for in servers.<name>.slurm", "sacct -j, or scontrol show job"),
    "launcher-killed": ("hsops launch --wait-healthy", "who sent the signal: audit log, journalctl, the orchestrator"),
    "detokenizer-died": (_AGAIN, "hsops status: how it ended"),
    "tokenizer-blocked": ("kill -CONT PID", "state T in /proc/PID/stat; TracerPid"),
    # rendezvous
    "rank-never-joined": (_AGAIN, "that rank's stack: what does it wait for?"),
    "nccl-no-socket-interface": ("NCCL_SOCKET_IFNAME of an interface that is there", "ip -br addr on the host"),
    # collective
    "collective-mismatch": (
        "no collective behind a branch on the rank; without patches",
        "NCCL's counts by rank: echo verbose status | nc localhost 28028",
    ),
}
