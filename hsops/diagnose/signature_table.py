"""The rows of ``signatures``, in order: the first whose words stand in the log wins, so precise causes come first.

Sources: SGLang 0.5.4-0.5.23, recorded runs, and public issue threads (named in each row).
"""

from __future__ import annotations

from hsops.diagnose.signatures import HIGH, LOW, MEDIUM, row

_OOM = r"CUDA out of memory|OutOfMemoryError: CUDA|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory"
_MEM_FRACTION = "lower args.mem-fraction-static (0.85 to 0.94 is usual), or free the GPUs: hsops status"

SIGNATURES = (
    row(
        "bad-flag",
        r"error: (unrecognized arguments|argument |ambiguous option|the following arguments are required)",
        HIGH,
        "correct servers.<name>.args in inventory.yaml; flags differ between SGLang versions",
        "argparse",
        terminal=True,
    ),
    row(
        "trust-remote-code-needed",
        r"contains custom code which must be executed|passing the argument `?trust_remote_code=True",
        HIGH,
        "add trust-remote-code: true to servers.<name>.args",
        "transformers; guidellm#860",
    ),
    row(
        "model-path-missing",
        r"is not a local folder and is not a valid model identifier|Can't load the config(uration)? (of|for)"
        r"|Repo id must (be in the form|use alphanumeric)|Incorrect path_or_model_id"
        r"|Cannot find any model weights with|does not appear to have a file named config\.json"
        r"|No such file or directory: '[^']*config\.json|Cannot find an appropriate cached snapshot folder"
        r"|Unrecognized model in ",
        HIGH,
        "correct servers.<name>.model in inventory.yaml: a folder on the host that holds config.json, or a hub id",
        "transformers, huggingface_hub, SGLang loader.py",
        terminal=True,
    ),
    row(
        "sgl-kernel-load-failed",
        r"Could not load any common_ops library|ImportError: libnv\w+\.so\.\d+: cannot open shared object"
        r"|^libnvrtc\.so\.\d+: cannot open",
        HIGH,
        "install the sgl-kernel wheel that matches the host's CUDA version",
        "sglang#29646, #18203, #16052",
    ),
    row(
        "nvml-driver-mismatch",
        r"Failed to initialize NVML: Driver/library version mismatch",
        HIGH,
        "reboot the host or reload the nvidia module; pin the driver packages",
        "shine-cluster#30",
    ),
    row(
        "driver-cuda-mismatch",
        r"compiled with an unsupported toolchain|driver version is insufficient for CUDA"
        r"|driver on your system is too old",
        HIGH,
        "upgrade the NVIDIA driver, or use a torch built for an older CUDA",
        "text-generation-inference#1026",
    ),
    row(
        "toolchain-too-old-for-arch",
        r"nvcc fatal\s*: +Unsupported gpu architecture",
        HIGH,
        "install a CUDA toolkit that knows this GPU (12.8 or newer for SM120)",
        "nvcc",
    ),
    row(
        "arch-not-supported",
        r"no kernel image is available|Unsupported architecture|No compiled \w+ for CUDA device capability"
        r"|'ImportError' object has no attribute 'get_num_sms'",
        HIGH,
        "use other backends (attention-backend flashinfer or triton on SM120) or kernels built for this GPU",
        "sglang#7249, #40558, vllm#32109",
    ),
    row(
        "triton-smem-out-of-resources",
        r"out of resource: shared memory",
        HIGH,
        "use another attention backend or smaller blocks: this GPU has less shared memory",
        "triton",
    ),
    row(
        "jit-cache-on-nfs",
        r"Stale file handle",
        MEDIUM,
        "put the JIT caches on a local disk: FLASHINFER_JIT_DIR, TRITON_CACHE_DIR",
        "flashinfer#3777",
    ),
    row(
        "jit-toolchain-missing",
        r"Could not find nvcc|nvcc: (command )?not found|'nvcc'|CUDA_HOME environment variable is not set"
        r"|Ninja is required|'ninja'",
        MEDIUM,
        "install the CUDA toolkit and ninja on the host, or set CUDA_HOME",
        "torch.utils.cpp_extension",
    ),
    row(
        "custom-allreduce-unsupported",
        r"peer access is not supported between these two devices",
        HIGH,
        "add disable-custom-all-reduce: true to servers.<name>.args",
        "sglang#4814",
    ),
    row(
        "nccl-no-socket-interface",
        r"no socket interface found|Bootstrap : no socket",
        HIGH,
        "set NCCL_SOCKET_IFNAME (and GLOO_SOCKET_IFNAME) to an interface that the host has",
        "NCCL",
    ),
    row(
        "shm-invalid-argument",
        r"shmutils.*Cuda failure 'invalid argument'",
        LOW,
        "remove stale /dev/shm/nccl-* files, or set NCCL_SHM_DISABLE=1",
        "nccl#1518",
    ),
    row(
        "shm-too-small",
        r"posix_fallocate failed ?: No space left|Error while creating shared memory segment|ncclShmOpen|^Bus error"
        r"|Fatal Python error: Bus error",
        HIGH,
        "give the container a larger /dev/shm: --ipc=host or --shm-size=8g",
        "nccl#342, #290, torchtitan#853",
    ),
    row(
        "ulimit-memlock",
        r"ibv_reg_mr\w* failed with error Cannot allocate memory",
        HIGH,
        "raise the memlock limit of the launching user (ulimit -l unlimited) and log in again",
        "nccl-tests#206",
    ),
    row(
        "port-race",
        r"EADDRINUSE",
        MEDIUM,
        "launch again; keep fixed ports outside net.ipv4.ip_local_port_range",
        "sglang#37215: torch's store lost a port between choosing and binding it",
    ),
    row(
        "port-in-use",
        r"(?i)address already in use|port \d+ is (already )?in use|port is already in use",
        HIGH,
        "stop what holds the port, or set another: servers.<name>.port",
        "uvicorn; SGLang network.py",
        terminal=True,
    ),
    row("cuda-oom-graph-capture", _OOM, HIGH, _MEM_FRACTION + ", or fewer graph sizes", "torch", stage="graphs"),
    row("cuda-oom-weights", _OOM, HIGH, "more GPUs, a smaller model, or free the GPUs", "torch", stage="weights"),
    row(
        "cuda-oom-nccl-buffers",
        r"ncclUnhandledCudaError.*out of memory|Cuda failure 2 'out of memory'",
        HIGH,
        _MEM_FRACTION,
        "NCCL",
    ),
    row(
        "cuda-oom-kv",
        r"Not enough memory\. Please try|larger than the profiled value -\d|" + _OOM,
        HIGH,
        "raise mem-fraction-static when the message says so, else use more GPUs or a smaller context",
        "SGLang model_runner.py; sglang#7691",
    ),
    row(
        "false-gpu-occupied",
        r"memory capacity is unbalanced",
        MEDIUM,
        "upgrade SGLang: the check trips on the draft worker's own buffer",
        "sglang#5416",
        also=r"(eagle|nextn|draft)_worker",
    ),
    row(
        "gpu-occupied",
        r"memory capacity is unbalanced",
        LOW,
        "look for processes that hold GPU memory: nvidia-smi, hsops status",
        "SGLang model_runner.py",
    ),
    row(
        "gpu-fell-off-bus",
        r"NVRM: Xid \(.*\): 79\b|GPU has fallen off the bus",
        HIGH,
        "reboot the host; lock the PCIe link speed, switch ASPM off",
        "rtx6kpro 2026-04-14",
        terminal=True,
    ),
    row(
        "xid-gsp-timeout",
        r"NVRM: Xid \(.*\): (8|119|120)\b|GPU is probably locked",
        HIGH,
        "reboot the host: the GPU's firmware does not answer",
        "open-gpu-kernel-modules#1159, #1111",
        terminal=True,
    ),
    row(
        "xid-kernel-fault",
        r"NVRM: Xid \(.*\): (13|31|43|45|62|63|64|74|94|95)\b",
        HIGH,
        "launch again; when it comes back with the same GPU, the hardware is suspect",
        "NVIDIA's list of Xid errors",
        terminal=True,
    ),
    row(
        "nccl-p2p-hang",
        r'NCCL WARN Missing "iommu=pt"',
        LOW,
        "iommu=pt on the kernel's command line, or nccl: pcie-dram and disable-custom-all-reduce: true",
        "ROCm/vllm#390: the library names the cause itself",
    ),
    row(
        "hidden-states-nan",
        r"hidden_state is expected to be non-nan",
        HIGH,
        "find the sample with hsops verify; the model overflows on it, or the capture is wrong",
        "SpecForge#104",
    ),
    row(
        "warmup-via-proxy",
        r"res=<Response \[50[24]\]>",
        MEDIUM,
        "set no_proxy=127.0.0.1,localhost in servers.<name>.env",
        "sglang#2468",
    ),
    row(
        "warmup-deadlock-busy-wait",
        r"Read timed out\. \(read timeout=600\)",
        LOW,
        "look at the schedulers while it happens: hsops diagnose during the warm-up",
        "sglang#6555: the warm-up's own request found no answer in 600 s",
    ),
    row(
        "nccl-collective-timeout",
        r"Watchdog caught collective operation timeout",
        HIGH,
        "find the rank that did not come: its lines end first; raise dist-timeout only for slow loads",
        "torch ProcessGroupNCCL; sglang#3784",
        terminal=True,
    ),
    row(
        "jit-compiling-killed-by-watchdog",
        r"Loading JIT ops.*\n.*[Ww]atchdog timeout",
        LOW,
        "compile before serving, or raise watchdog-timeout for the first start",
        "Soft-Thinking#10",
    ),
    row(
        "watchdog-timeout",
        r"[Ww]atchdog timeout \(self\.watchdog_timeout=",
        HIGH,
        "read the stacks that follow this line in the log; install py-spy when they are missing",
        "SGLang watchdog.py",
        terminal=True,
    ),
    row(
        "rank-straggler-load",
        r"rank \d+ could finish the model loading, but there are other ranks that didn't",
        MEDIUM,
        "look at the silent rank's disk and memory; raise dist-timeout when it is only slow",
        "sglang#5457",
    ),
    row(
        "scheduler-killed-oom",
        r"[Ee]xit code: -9\b|EXIT 137\b|exit status 137\b|Out of memory: Killed process",
        LOW,
        "look for the OOM killer: dmesg -T | grep -i oom; lower the host memory that loading takes",
        "SGLang engine.py; sglang#15235, #37931: SIGKILL is the OOM killer in most reports",
        terminal=True,
    ),
)
