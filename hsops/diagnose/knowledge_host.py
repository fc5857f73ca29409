"""What is known of causes in the host and what is installed there: class -> what to do, what would confirm it."""

from __future__ import annotations

HOST: dict[str, tuple[str, str]] = {
    # arch-unsupported
    "arch-not-supported": (
        "backends that this GPU has kernels for: attention-backend flashinfer or triton on SM120; a wheel built for it",
        "nvidia-smi --query-gpu=compute_cap --format=csv against what the wheel was built for",
    ),
    "triton-smem-out-of-resources": (
        "another attention backend, or smaller blocks: SM120 has 100 KB of shared memory, SM90 228",
        "the figures that the line names: required and hardware limit",
    ),
    "wrong-kernel-slow": (
        "without the flag that chose the slow path: kv-cache-dtype auto, another MoE or attention backend",
        "tokens/s of one request with and without the flag",
    ),
    # gpu-memory
    "cuda-oom-graph-capture": (
        "a lower mem-fraction-static, fewer or smaller cuda-graph-bs",
        "avail mem in the 'Capture cuda graph begin' line: a graph takes 0.1 to 1 GB a size",
    ),
    "cuda-oom-kv": (
        "raise mem-fraction-static when the message says so, else more GPUs or a smaller context",
        "avail mem at 'Load weight end' against mem-fraction-static",
    ),
    "cuda-oom-nccl-buffers": ("a lower mem-fraction-static; fewer NCCL channels", "NCCL_DEBUG=INFO names the buffers"),
    "cuda-oom-weights": (
        "more GPUs, a quantised model, or free the GPUs",
        "the checkpoint's bytes by tp, against memory free before the start",
    ),
    "false-gpu-occupied": (
        "upgrade SGLang: the check trips on the draft worker's own buffer",
        "nvidia-smi shows no other process; the frame is the draft worker's",
    ),
    "gpu-occupied": ("end who holds memory: hsops status, hsops stop --orphan PID", "nvidia-smi, before the launch"),
    # gpu-pcie-hw
    "gpu-driver-spin": ("end the server, reset the GPU; report the driver's version", "perf top: time in nvidia.ko"),
    "gpu-fell-off-bus": (
        "reboot; lock the PCIe link speed, pcie_aspm=off, look at risers and power",
        "dmesg: Xid 79; lspci shows revision ff",
    ),
    "gpu-wedged-needs-reset": (
        "end every process on it, nvidia-smi --gpu-reset -i N as root; else reboot",
        "nvidia-smi shows load and no process",
    ),
    "host-hard-freeze-pcie": ("IPMI reset; BIOS: ASPM off, other slots, power", "the IPMI event log; journalctl -b -1"),
    "xid-gsp-timeout": ("reboot: the GPU's firmware does not answer; another driver", "dmesg: Xid 8, 119 or 120"),
    "xid-kernel-fault": (
        "launch again; when the same GPU fails again, the hardware is suspect",
        "dmesg: which Xid, and whether it is always the same bus id",
    ),
    # host-limits
    "disk-full": (
        "free the disk; hsops fetch, then remove what is verified",
        "df -h and df -i of that path",
    ),
    "shm-invalid-argument": ("remove stale /dev/shm/nccl-*; NCCL_SHM_DISABLE=1", "ls -la /dev/shm; df /dev/shm"),
    "shm-too-small": ("--ipc=host or --shm-size=8g for the container", "df -h /dev/shm inside it: 64 MB is Docker's"),
    "ulimit-memlock": (
        "memlock unlimited in limits.conf and for sshd, then log in again",
        "ulimit -l, as the launcher",
    ),
    # host-memory-kill
    "host-memory-check-false": ("fewer vm.nr_hugepages, or a smaller hicache-size", "grep Huge /proc/meminfo"),
    "host-memory-overcommit": (
        "a smaller hicache-size, or fewer ranks on the host",
        "free -g against what it asks for",
    ),
    "scheduler-killed-oom": (
        "less host memory while loading: fewer loader threads, disable-mmap off, a larger cgroup limit",
        "dmesg -T | grep -i -e oom -e 'killed process'; memory.events of the cgroup",
    ),
    # hub-tokenizer
    "hub-offline-remote-code": ("the model's .py files beside its weights", "grep auto_map config.json"),
    "hub-offline-stall": (
        "HF_HUB_OFFLINE=1, with a model that is whole on the host",
        "curl -m 5 https://huggingface.co",
    ),
    "trust-remote-code-needed": ("trust-remote-code: true in args", "auto_map in the model's config.json"),
    # install-driver
    "driver-cuda-mismatch": (
        "a newer driver, or a torch built for an older CUDA",
        "nvidia-smi against torch.version.cuda",
    ),
    "nvml-driver-mismatch": (
        "reboot, or unload and load the nvidia modules; hold the driver packages",
        "cat /proc/driver/nvidia/version against the package's version",
    ),
    "sgl-kernel-load-failed": ("the sgl-kernel wheel of this CUDA version", "python -c 'import sgl_kernel'"),
    # jit-compile
    "autotune-rank-desync-deadlock": (
        "remove the autotune cache on all ranks, or switch autotuning off",
        "which ranks said 'Loaded N configs' and which tune",
    ),
    "autotune-slow-crawl": ("wait once and keep the cache, or switch autotuning off", "the tuner's bar: s/profile"),
    "jit-cache-on-nfs": ("JIT caches on a local disk: FLASHINFER_JIT_DIR, TRITON_CACHE_DIR", "stat -f of the cache"),
    "jit-compiling-killed-by-watchdog": (
        "compile before serving; a larger watchdog-timeout once",
        "the line before it",
    ),
    "jit-loading-stuck": ("remove the JIT caches, then hsops launch --replace", "ls -la of the cache: locks, dates"),
    "jit-stale-cache": ("remove the caches: ~/.cache/flashinfer, ~/.triton", "builds older than the installation"),
    "jit-stale-lock": (
        "remove the file named lock in the build's folder",
        "no compiler runs, and no process has it open",
    ),
    "jit-toolchain-missing": ("nvcc and ninja on the host, CUDA_HOME set", "which nvcc ninja, as the server sees PATH"),
    "toolchain-too-old-for-arch": ("a CUDA toolkit that knows the GPU: 12.8 for SM120", "nvcc --version"),
    # ports-orphans
    "kill-tree-too-broad": ("hsops stop, which ends its own tree and nothing else", "the audit log; who ran pkill"),
    "orphan-holds-gpu": ("hsops stop --orphan PID", "nvidia-smi: the pid is of no run that lives"),
    "port-in-use": ("stop who holds the port, or servers.<name>.port: auto", "ss -ltnp 'sport = :PORT' as root"),
    "port-race": ("launch again; fixed ports outside net.ipv4.ip_local_port_range", "nobody listens there afterwards"),
    # ops-environment
    "docker-syncfs-stall": (
        "wait for dirty pages, or lower vm.dirty_bytes",
        "grep Dirty /proc/meminfo; wchan of docker",
    ),
    "ssh-launch-holds-stdin": ("hsops launch; by hand setsid nohup ... < /dev/null", "ls -l /proc/PID/fd/0"),
    "tool-blocked-ptrace": ("--cap-add SYS_PTRACE, or from the host as root", "cat /proc/sys/kernel/yama/ptrace_scope"),
    # configuration
    "model-path-missing": ("a folder on the host that holds config.json, or a hub id", "ls of the path on the host"),
    "dump-dir-unwritable": ("give the server's user the folder", "hsops doctor"),
    "dump-dir-full": ("hsops fetch --evict: removes there what is safe here", "df of the dump folder"),
    "patch-identity-mismatch": ("hsops launch --replace: the running server has older code", "hsops deploy --status"),
}
