"""The inventory of a lab: a host like any other, and the server that runs there."""

from __future__ import annotations

from hsops.lab.model import DEFAULT, MODELS

TEMPLATE = """\
# A practice host on this machine with a real SGLang on the CPU. Written by `hsops lab up`.
hosts:
  lab:
    ssh: lab
    ssh_config: {home}/ssh_config       # made by `hsops lab up`: port, throw-away key, known host
    python: {home}/venv/bin/python      # the interpreter that runs SGLang there
    state_dir: {home}/state             # runs, patches, the agent
    dumps: {home}/dumps                 # where the ranks write hidden states
servers:
  tiny:                                          # 6 layers of 64, random weights; nothing to learn, all to practise
    host: lab
    model: {home}/models/{model}
    tp: {tp}
    port: auto
    nccl: pcie-p2p                               # without effect on a CPU; shows how a profile is named
    env:
      SGLANG_USE_CPU_ENGINE: "1"
      TORCHDYNAMO_DISABLE: "1"                   # saves 18 s of compiling in the first prefill
      OMP_NUM_THREADS: "1"
      HF_HUB_OFFLINE: "1"{bind}
    args:
      device: cpu
      dtype: float32                             # bfloat16 would hide a dump that is one layer off
      skip-tokenizer-init: true                  # prompts are token ids
      attention-backend: torch_native
      sampling-backend: pytorch
      grammar-backend: none
      disable-overlap-schedule: true
      disable-cuda-graph: true
      mem-fraction-static: 0.5
      max-total-tokens: 2048
      max-running-requests: 4
      context-length: 512{args}
    patches: [hs-dump]
patches:
  hs-dump:
    boundaries: [1, 3, 5]                        # k = the residual stream just before layer k
    final: pre-norm                              # and after the last layer
default: tiny
"""


def inventory(home: str, *, tp: int, cpus: list[int], model: str = DEFAULT) -> str:
    """inventory.yaml for the lab at ``home``.

    Args:
        home: as the file shall name it, absolute or beginning with ``~/``.
        tp: tensor-parallel size of the server.
        cpus: processors that this machine lets us use; ranks are spread over them.
        model: one of ``hsops.lab.model.MODELS``.
    """
    tiny = MODELS[model]
    args = "".join(f"\n      {name}: {value}" for name, value in tiny.args.items())
    return TEMPLATE.format(home=home, model=tiny.folder, tp=tp, bind=_bind(tp, cpus), args=args)


def _bind(tp: int, cpus: list[int]) -> str:
    """Above TP 1 SGLang asks for a processor of each rank: it finds no NUMA node for it otherwise."""
    if tp == 1:
        return ""
    ranks = "|".join(str(cpus[rank % len(cpus)]) for rank in range(tp))
    return f'\n      SGLANG_CPU_OMP_THREADS_BIND: "{ranks}"' + " " * 10 + "# one processor a rank"
