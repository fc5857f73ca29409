"""Signatures of what is installed and asked for: flags, model, hub, libraries, compilers."""

from __future__ import annotations

from hsops.diagnose.signatures import HIGH, MEDIUM, row

SOFTWARE = (
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
        "hub-offline-remote-code",
        r"Could not locate the [\w.-]+\.py inside ",
        HIGH,
        "put the model's .py files beside its weights and name that folder as servers.<name>.model",
        "transformers dynamic_module_utils.py; transformers#34855",
        also=r"(?i)couldn't connect to|offline|outgoing traffic has been disabled|Max retries exceeded",
        terminal=True,
    ),
    row(
        "hub-offline-stall",
        r"couldn't connect to 'https?://[^']+' to load|Max retries exceeded with url: /[^\n]*(resolve|api/models)"
        r"|thrown while requesting (HEAD|GET) https?://huggingface",
        MEDIUM,
        "HF_HUB_OFFLINE=1 in servers.<name>.env, with a model that is whole on the host",
        "transformers, huggingface_hub; jncraton/languagemodels#24",
        likes=("model-path-missing",),
    ),
    row(
        "model-path-missing",
        r"is not a local folder and is not a valid model identifier|Can't load the config(uration)? (of|for)"
        r"|Repo id must (be in the form|use alphanumeric)|Incorrect path_or_model_id"
        r"|Cannot find any model weights with|does not appear to have a file named config\.json"
        r"|No such file or directory: '[^']*config\.json|Cannot find an appropriate cached snapshot folder"
        r"|Unrecognized model in |outgoing traffic has been disabled",
        HIGH,
        "correct servers.<name>.model in inventory.yaml: a folder on the host that holds config.json, or a hub id",
        "transformers, huggingface_hub, SGLang loader.py",
        terminal=True,
    ),
    row(
        "sgl-kernel-load-failed",
        r"Could not load any common_ops library|ImportError: \S*sgl_kernel\S*\.so"
        r"|cannot import name '\w+' from 'sgl_kernel'"
        r"|ImportError: libnv\w+\.so\.\d+: cannot open shared object"
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
        r"|driver on your system is too old|forward compatibility was attempted on non supported HW",
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
)
