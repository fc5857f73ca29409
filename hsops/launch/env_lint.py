"""Environment variables of a server that cannot mean what they say: names, values, pairs. Pure.

Sources: NCCL's list (docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html), PyTorch's ProcessGroupNCCL variables
(docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html), CUDA's (docs.nvidia.com/cuda, the
programming guide's environment variables); SGLang's names come from the code that is installed on the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from hsops.launch import nccl

_LIKE = 0.88  # as alike as two names that differ by a letter or a swap
_LINTED = re.compile(r"(NCCL|SGLANG|SGL|CUDA|TORCH_NCCL|GLOO)_(?!HS_)")  # SGLANG_HS_ is the capture's own
TORCH = frozenset(
    f"TORCH_NCCL_{name}"
    for name in (
        *("ASYNC_ERROR_HANDLING", "AVOID_RECORD_STREAMS", "BCAST_UNIQUEID", "BLOCKING_WAIT", "COORD_CHECK_MILSEC"),
        *("CUDA_EVENT_CACHE", "DEBUG_INFO_PIPE_FILE", "DEBUG_INFO_TEMP_FILE", "DESYNC_DEBUG", "DUMP_ON_TIMEOUT"),
        *("ENABLE_MONITORING", "ENABLE_TIMING", "EXTRA_DUMP_ON_EXEC", "HEARTBEAT_TIMEOUT_SEC", "HIGH_PRIORITY"),
        *("LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN", "NAN_CHECK", "NONBLOCKING_TIMEOUT", "PROPAGATE_ERROR"),
        *("RANKS_PER_ROOT", "RETHROW_CUDA_ERRORS", "SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "TRACE_BUFFER_SIZE"),
        *("TRACE_CPP_STACK", "USE_COMM_NONBLOCKING", "USE_TENSOR_REGISTER_ALLOCATOR_HOOK"),
        *("WAIT_TIMEOUT_DUMP_MILSEC",),
    )
)
CUDA = frozenset(
    f"CUDA_{name}"
    for name in (
        *(
            "VISIBLE_DEVICES",
            "DEVICE_ORDER",
            "DEVICE_MAX_CONNECTIONS",
            "DEVICE_MAX_COPY_CONNECTIONS",
            "LAUNCH_BLOCKING",
        ),
        *("CACHE_PATH", "CACHE_DISABLE", "CACHE_MAXSIZE", "FORCE_PTX_JIT", "DISABLE_PTX_JIT", "MODULE_LOADING", "HOME"),
        *("MODULE_DATA_LOADING", "AUTO_BOOST", "SCALE_LAUNCH_QUEUES", "MANAGED_FORCE_DEVICE_ALLOC", "PATH", "VERSION"),
        *("ENABLE_COREDUMP_ON_EXCEPTION", "ENABLE_USER_TRIGGERED_COREDUMP", "COREDUMP_FILE", "COREDUMP_PIPE"),
        *("COREDUMP_GENERATION_FLAGS", "ENABLE_CPU_COREDUMP_ON_EXCEPTION", "ENABLE_LIGHTWEIGHT_COREDUMP"),
        *(
            "COREDUMP_SHOW_PROGRESS",
            "LOG_FILE",
            "MPS_PIPE_DIRECTORY",
            "MPS_LOG_DIRECTORY",
            "MPS_PINNED_DEVICE_MEM_LIMIT",
        ),
        *(
            "MPS_ACTIVE_THREAD_PERCENTAGE",
            "MPS_CLIENT_PRIORITY",
            "BINARY_LOADER_THREAD_COUNT",
            "FORCE_JIT",
            "DISABLE_JIT",
        ),
        *(
            "GRAPHS_USE_NODE_PRIORITY",
            "DEVICE_WAITS_ON_EXCEPTION",
            "DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT",
        ),
        *("DEVICE_DRIVER_VERSION", "INC_PATH", "LIB_PATH", "ROOT", "TOOLKIT_ROOT_DIR", "ARCH_LIST", "NVCC_EXECUTABLE"),
    )
)

_WHOLE = re.compile(r"-?\d+\Z")
_SWITCH = "0 or 1"
_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", *map(str, range(6)))
_WORDS: Mapping[str, tuple[str, ...]] = {
    "NCCL_P2P_LEVEL": _LEVELS,
    "NCCL_NET_GDR_LEVEL": (*_LEVELS, "P2C"),
    "NCCL_DEBUG": ("VERSION", "WARN", "INFO", "ABORT", "TRACE", "NONE"),
    "NCCL_SOCKET_FAMILY": ("AF_INET", "AF_INET6"),
    "NCCL_LAUNCH_MODE": ("PARALLEL", "GROUP"),
    "CUDA_DEVICE_ORDER": ("FASTEST_FIRST", "PCI_BUS_ID"),
    "CUDA_MODULE_LOADING": ("LAZY", "EAGER", "DEFAULT"),
}
_LISTS: Mapping[str, tuple[str, ...]] = {
    "NCCL_PROTO": ("LL", "LL128", "SIMPLE"),
    "NCCL_ALGO": ("TREE", "RING", "COLLNETDIRECT", "COLLNETCHAIN", "NVLS", "NVLSTREE", "PAT"),
    "NCCL_DEBUG_SUBSYS": (
        *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS", "BOOTSTRAP"),
        *("REG", "PROFILE", "RAS", "ALL"),
    ),
}
_SWITCHES = frozenset(
    {f"NCCL_{name}" for name in ("P2P_DISABLE", "SHM_DISABLE", "IB_DISABLE", "RAS_ENABLE", "CHECK_POINTERS")}
    | {"NCCL_CHECKS_DISABLE", "NCCL_NET_SHARED_BUFFERS", "CUDA_CACHE_DISABLE"}
    | {"NCCL_COMM_BLOCKING", "NCCL_ALLOC_P2P_NET_LL_BUFFERS", "NCCL_DMABUF_ENABLE", "CUDA_LAUNCH_BLOCKING"}
    | {
        "TORCH_NCCL_BLOCKING_WAIT",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "TORCH_NCCL_ENABLE_MONITORING",
        "TORCH_NCCL_DESYNC_DEBUG",
    }
)
_COUNTS = frozenset(
    {f"NCCL_{name}" for name in ("MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS", "BUFFSIZE", "NTHREADS")}
    | {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_GID_INDEX"}
    | {"CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"}
)
_KINDS = {  # as SGLang's own fields read them (srt/environ.py, the same in 0.5.4 - 0.5.23); "" is left to it
    "Bool": re.compile(r"(?i)(true|1|yes|y|false|0|no|n)\Z"),
    "Int": re.compile(r"[+-]?\d+(_\d+)*\Z"),
    "Float": re.compile(r"(?i)[+-]?(\d+(_\d+)*\.?\d*|\.\d+)(e[+-]?\d+)?\Z|[+-]?(inf|infinity|nan)\Z"),
}
_IS_NOT = {"Bool": "none of true, 1, yes, y, false, 0, no, n", "Int": "no whole number", "Float": "no number"}
_IS_NOT |= dict.fromkeys(_COUNTS, "no whole number") | {"NCCL_RAS_ADDR": "not HOST:PORT"}
_FORMS = {name: re.compile(r"\d+\Z") for name in _COUNTS} | {"NCCL_RAS_ADDR": re.compile(r".+:\d{1,5}\Z")}
_OVERWRITTEN = frozenset({"CUDA_DEVICE_MAX_CONNECTIONS"})
_INTERFACES = frozenset({"NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "GLOO_SOCKET_IFNAME"})


@dataclass(frozen=True, slots=True)
class Machine:
    """What the host has. None: nobody looked.

    Args:
        interfaces: of its network; ``cards``: its InfiniBand or RoCE devices.
        names: variables that the installed SGLang reads; all of them, or enough to know those that were asked about.
        kinds: ``Bool``, ``Int`` or ``Float`` of those that its code declares as such.
    """

    interfaces: tuple[str, ...] | None = None
    cards: tuple[str, ...] | None = None
    names: frozenset[str] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)


def wants_machine(env: Mapping[str, str]) -> bool:
    """Whether the host has to be asked to judge ``env``."""
    return any(name in _INTERFACES or name == "NCCL_IB_HCA" or name.startswith(("SGLANG_", "SGL_")) for name in env)


def faults(env: Mapping[str, str], profile: Mapping[str, str], machine: Machine, tp: int) -> Iterator[tuple[str, str]]:
    """(variable, what is wrong with it): what cannot work, or cannot be meant.

    Args:
        env: what the inventory sets for the server; ``profile``: what its NCCL profile sets, which ``env`` overrides.
        tp: ranks.
    """
    for name, value in env.items():
        linted = bool(_LINTED.match(name))
        said = _name(name, machine) or _value(name, value.strip(), machine, tp) if linted else _prefix(name)
        if said := said or (_PAIRS[name](env, profile) if name in _PAIRS else ""):
            yield name, said


def interface_faults(env: Mapping[str, str], machine: Machine) -> Iterator[tuple[str, str]]:
    """Of ``faults`` those about network interfaces, which a host may lack."""
    for name in sorted(_INTERFACES & env.keys()):
        if said := _value(name, env[name].strip(), machine, 1):
            yield name, said


def warnings(env: Mapping[str, str]) -> Iterator[str]:
    """What works and costs speed, or hides what ``hsops diagnose`` looks for."""
    for (name, value), said in _COSTS.items():
        if env.get(name) == value:
            yield f"env {name}={value}: {said}"
    for name in sorted(_OVERWRITTEN & env.keys()):
        yield f"env {name}: without effect: SGLang sets it itself (0.5.4 - 0.5.23, entrypoints/engine.py)"
    if "NCCL_DEBUG_FILE" in env and env.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE"):
        yield "env NCCL_DEBUG_FILE: NCCL's own words do not reach the server's log; hsops diagnose reads only that"


def _name(name: str, machine: Machine) -> str:
    kinds: tuple[tuple[str, frozenset[str] | None, str], ...] = (
        ("NCCL_", nccl.KNOWN, "NCCL"),
        ("TORCH_NCCL_", TORCH, "torch"),
        ("CUDA_", CUDA, "CUDA"),
        ("SGLANG_", machine.names, "the installed SGLang"),
        ("SGL_", machine.names, "the installed SGLang"),
    )
    for prefix, known, whose in kinds:
        if name.startswith(prefix) and known and name not in known:
            like = get_close_matches(name, sorted(known), n=1, cutoff=_LIKE)
            if like:
                return f"not a variable that {whose} reads; did you mean {like[0]}?"
    return ""


def _prefix(name: str) -> str:
    """A known name behind a misspelt prefix, or in small letters. RCCL_, UCCL_, SLANG_ are other libraries' own."""
    head, _, rest = name.upper().partition("_")
    if name.startswith("CNCL_"):  # Cambricon's
        return ""
    for prefix, known, whose in (("NCCL", nccl.KNOWN, "NCCL"), ("CUDA", CUDA, "CUDA"), ("TORCH", TORCH, "torch")):
        if set(head) == set(prefix) and (right := f"{prefix}_{rest}") in known:
            return f"not a variable that {whose} reads; did you mean {right}?"
    if rest and not name.startswith("SGLANG_") and len(head) >= len("SGLANG") and set(head) == set("SGLANG"):
        return f"not a variable that SGLang reads; did you mean SGLANG_{rest}?"
    return ""


def _value(name: str, value: str, machine: Machine, tp: int) -> str:
    if name in _WORDS or name in _LISTS:
        return _word(name, value)
    if name in _SWITCHES and value not in ("0", "1"):
        return f"{value!r} is not {_SWITCH}"
    if name in _FORMS and not _FORMS[name].match(value):
        return f"{value!r} is {_IS_NOT[name]}"
    if name in _INTERFACES and machine.interfaces is not None:
        whole = "=" if name.startswith("GLOO_") else ""  # gloo takes no prefixes
        return _there(whole + value, machine.interfaces, "network interface")
    if name == "NCCL_IB_HCA" and machine.cards is not None:
        return _there(value, machine.cards, "InfiniBand or RoCE device", port=True)
    return _devices(value, tp) if name == "CUDA_VISIBLE_DEVICES" else _typed(value, machine.kinds.get(name, ""))


def _typed(value: str, kind: str) -> str:
    if not value or not kind or _KINDS[kind].match(value):
        return ""
    return f"{value!r} is {_IS_NOT[kind]}: the installed SGLang would warn and use its default"


def _word(name: str, value: str) -> str:
    if name in _WORDS:
        return "" if value.upper() in _WORDS[name] else f"{value!r} is none of {', '.join(_WORDS[name])}"
    given = [word.strip().upper() for word in re.split(r"[,;]", value.lstrip("^").rpartition(":")[2])]
    wrong = [word for word in given if word.lstrip("^") not in _LISTS[name]]
    return f"{wrong[0]!r} is none of {', '.join(_LISTS[name])}" if wrong else ""


def _there(value: str, there: tuple[str, ...], what: str, *, port: bool = False) -> str:
    """NCCL's lists: prefixes, ``=`` for whole names, ``^`` for all but these."""
    if value.startswith("^"):
        return ""
    exact = value.startswith("=")
    wanted = [word.partition(":")[0] if port else word for word in value.lstrip("=").split(",") if word]
    if any(one == word if exact else one.startswith(word) for word in wanted for one in there):
        return ""
    return f"the host has no {what} {value!r}; it has {', '.join(there) or 'none'}"


def _devices(value: str, tp: int) -> str:
    named = [word.strip() for word in value.split(",") if word.strip()]
    if len(set(named)) < len(named):
        return f"{value!r} names a device twice"
    return f"{len(named)} devices for tp {tp}" if len(named) < tp else ""


def _channels(env: Mapping[str, str], profile: Mapping[str, str]) -> str:
    least, most = ({**profile, **env}.get(f"NCCL_{which}_NCHANNELS", "") for which in ("MIN", "MAX"))
    if _WHOLE.match(least) and _WHOLE.match(most) and int(least) > int(most):
        return f"NCCL_MIN_NCHANNELS, {least}, is more than NCCL_MAX_NCHANNELS, {most}"
    return ""


def _ctas(env: Mapping[str, str], profile: Mapping[str, str]) -> str:
    least, most = ({**profile, **env}.get(f"NCCL_{which}_CTAS", "") for which in ("MIN", "MAX"))
    if _WHOLE.match(least) and _WHOLE.match(most) and int(least) > int(most):
        return f"NCCL_MIN_CTAS, {least}, is more than NCCL_MAX_CTAS, {most}"
    return ""


def _fabric(env: Mapping[str, str], profile: Mapping[str, str]) -> str:
    if {**profile, **env}.get("NCCL_IB_DISABLE") != "1":
        return ""
    return "without effect beside NCCL_IB_DISABLE=1" + _whose("NCCL_IB_DISABLE", env)


def _nvls(env: Mapping[str, str], profile: Mapping[str, str]) -> str:
    both = {**profile, **env}
    only = both.get("NCCL_ALGO", "").upper() in ("NVLS", "NVLSTREE")
    return "NCCL_NVLS_ENABLE=0 leaves no algorithm of it" if only and both.get("NCCL_NVLS_ENABLE") == "0" else ""


def _shared_memory(env: Mapping[str, str], profile: Mapping[str, str]) -> str:
    both = {**profile, **env}
    if both.get("NCCL_P2P_DISABLE") != "1" or both.get("NCCL_SHM_DISABLE") != "1":
        return ""
    return "with NCCL_P2P_DISABLE=1 the GPUs of one box can only talk through network sockets; keep one"


def _dump(env: Mapping[str, str], _profile: Mapping[str, str]) -> str:
    none = env.get("TORCH_NCCL_DUMP_ON_TIMEOUT") == "1" and env.get("TORCH_NCCL_TRACE_BUFFER_SIZE") == "0"
    return "with TORCH_NCCL_TRACE_BUFFER_SIZE=0 there is nothing to dump" if none else ""


def _p2p(env: Mapping[str, str], profile: Mapping[str, str]) -> str:
    if {**profile, **env}.get("NCCL_P2P_DISABLE") != "1":
        return ""
    return "contradicts NCCL_P2P_DISABLE=1, which is stronger" + _whose("NCCL_P2P_DISABLE", env)


def _whose(name: str, env: Mapping[str, str]) -> str:
    """What to do about a variable that is stronger: one of the profile is not seen in the inventory."""
    return "; keep one" if name in env else f", of the nccl profile; set {name}: '0' beside it, or take another profile"


def _waits(env: Mapping[str, str], _profile: Mapping[str, str]) -> str:
    both = env.get("TORCH_NCCL_BLOCKING_WAIT") == "1" and env.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0") not in (
        "0",
        "",
    )
    return "not together with TORCH_NCCL_ASYNC_ERROR_HANDLING: torch takes one way to notice a hang" if both else ""


_PAIRS: Mapping[str, Callable[[Mapping[str, str], Mapping[str, str]], str]] = {
    "NCCL_MIN_NCHANNELS": _channels,
    "NCCL_MAX_NCHANNELS": _channels,
    "NCCL_MIN_CTAS": _ctas,
    "NCCL_MAX_CTAS": _ctas,
    "NCCL_IB_HCA": _fabric,
    "NCCL_IB_GID_INDEX": _fabric,
    "NCCL_ALGO": _nvls,
    "NCCL_SHM_DISABLE": _shared_memory,
    "TORCH_NCCL_DUMP_ON_TIMEOUT": _dump,
    "NCCL_P2P_LEVEL": _p2p,
    "TORCH_NCCL_BLOCKING_WAIT": _waits,
}
_COSTS: Mapping[tuple[str, str], str] = {
    ("CUDA_LAUNCH_BLOCKING", "1"): "every kernel is waited for; several times slower, and no CUDA graphs",
    ("NCCL_RAS_ENABLE", "0"): "NCCL cannot be asked which rank is behind when it hangs",
    ("TORCH_NCCL_ENABLE_MONITORING", "0"): "torch does not end a server whose collective hangs",
    ("PYTHONUNBUFFERED", ""): "lines stay in buffers, so a hang looks earlier than it is",
    ("TORCH_NCCL_TRACE_BUFFER_SIZE", "0"): "torch keeps no record of collectives, which tells the rank that is behind",
    ("TORCH_NCCL_BLOCKING_WAIT", "1"): "the CPU waits for every collective; nothing overlaps",
    ("NCCL_DEBUG", "NONE"): "NCCL's errors do not reach the log",
    ("NCCL_CHECKS_DISABLE", "1"): "a wrong argument ends in a hang instead of an error",
    ("NCCL_DEBUG", "TRACE"): "the log grows by a line a collective",
}
