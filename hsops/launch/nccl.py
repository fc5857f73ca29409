"""NCCL environments as named profiles, and the variables that NCCL reads. Every value can be overridden in ``env``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

FILE = Path(__file__).with_name("nccl_profiles.yaml")


@dataclass(frozen=True, slots=True)
class Profile:
    """A named environment.

    Args:
        env: what it sets; ``why``: the reason for each variable.
        when: what it is for, and what goes wrong with it elsewhere.
        fits: ``hardware``, ``driver`` and ``nccl`` that it was seen to work on.
        sources: addresses.
    """

    env: Mapping[str, str]
    why: Mapping[str, str]
    when: str
    fits: Mapping[str, str]
    sources: tuple[str, ...]


@cache
def profiles() -> Mapping[str, Profile]:
    """By name, from the file beside this one."""
    return {
        name: Profile(
            {variable: one["value"] for variable, one in raw["env"].items()},
            {variable: one["why"] for variable, one in raw["env"].items()},
            raw["when"],
            raw["fits"],
            tuple(raw["sources"]),
        )
        for name, raw in yaml.safe_load(FILE.read_text(encoding="utf-8")).items()
    }


# NCCL 2.18 - 2.28. Only used to catch misspelt names: a name far from all of these is left alone.
KNOWN = frozenset(
    f"NCCL_{name}"
    for name in (
        *("ALGO", "ALLOC_P2P_NET_LL_BUFFERS", "BUFFSIZE", "CHECKS_DISABLE", "CHECK_POINTERS", "COLLNET_ENABLE"),
        *("COLLNET_NODE_THRESHOLD", "COMM_BLOCKING", "COMM_ID", "COMM_SHRINK_SHARE_RESOURCES", "CONF_FILE"),
        *("CONNECT_ROUND_ROBIN", "CROSS_NIC", "CTA_POLICY", "CUMEM_ENABLE", "CUMEM_HOST_ENABLE", "DEBUG", "DEBUG_FILE"),
        *("DEBUG_SUBSYS", "DEBUG_TIMESTAMP_FORMAT", "DEBUG_TIMESTAMP_LEVELS", "DMABUF_ENABLE", "GRAPH_DUMP_FILE"),
        *("GRAPH_FILE", "GRAPH_MIXING_SUPPORT", "GRAPH_REGISTER", "HOSTID", "IB_ADAPTIVE_ROUTING", "IB_ADDR_FAMILY"),
        *("IB_ADDR_RANGE", "IB_AR_THRESHOLD", "IB_CUDA_SUPPORT", "IB_DISABLE", "IB_ECE_ENABLE", "IB_FIFO_TC"),
        *("IB_GID_INDEX", "IB_HCA", "IB_MERGE_NICS", "IB_MERGE_VFS", "IB_PCI_RELAXED_ORDERING", "IB_PKEY"),
        *("IB_QPS_PER_CONNECTION", "IB_RETRY_CNT", "IB_RETURN_ASYNC_EVENTS", "IB_ROCE_VERSION_NUM", "IB_SL"),
        *("IB_SPLIT_DATA_ON_QPS", "IB_TC", "IB_TIMEOUT", "IGNORE_CPU_AFFINITY", "IGNORE_DISABLED_P2P"),
        *("LAUNCH_MODE", "LAUNCH_ORDER_IMPLICIT", "LEGACY_CUDA_REGISTER", "LL128_BUFFSIZE", "LL128_NTHREADS"),
        *("LL_BUFFSIZE", "LL_THRESHOLD", "LOCAL_REGISTER", "MAX_CTAS", "MAX_NCHANNELS", "MAX_NRINGS"),
        *("MAX_P2P_NCHANNELS", "MIN_CTAS", "MIN_NCHANNELS", "MIN_NRINGS", "MIN_P2P_NCHANNELS", "MNNVL_ENABLE"),
        *("NCHANNELS_PER_NET_PEER", "NET", "NETDEVS_POLICY", "NET_DISABLE_INTRA", "NET_FORCE_FLUSH", "NET_GDR_C2C"),
        *("NET_GDR_LEVEL", "NET_GDR_READ", "NET_MERGE_LEVEL", "NET_PLUGIN", "NET_SHARED_BUFFERS", "NET_SHARED_COMMS"),
        *("NSOCKS_PERTHREAD", "NTHREADS", "NVB_DISABLE", "NVLS_ENABLE", "NVLS_NCHANNELS", "OOB_NET_ENABLE"),
        *("OOB_NET_IFNAME", "P2P_DIRECT_DISABLE", "P2P_DISABLE", "P2P_LEVEL", "P2P_LL_THRESHOLD", "P2P_NET_CHUNKSIZE"),
        *("P2P_NVL_CHUNKSIZE", "P2P_PCI_CHUNKSIZE", "P2P_PXN_LEVEL", "P2P_READ_ENABLE", "P2P_USE_CUDA_MEMCPY"),
        *("PROFILER_PLUGIN", "PROGRESS_APPENDOP_FREQ", "PROTO", "PXN_DISABLE", "RAS_ADDR", "RAS_ENABLE"),
        *("RAS_TIMEOUT_FACTOR", "RUNTIME_CONNECT", "SET_STACK_SIZE", "SET_THREAD_NAME", "SHM_DISABLE"),
        *("SHM_LOCALITY", "SHM_MEMCPY_MODE", "SHM_USE_CUDA_MEMCPY", "SINGLE_RING_THRESHOLD", "SOCKET_FAMILY"),
        *("SOCKET_IFNAME", "SOCKET_NTHREADS", "SOCKET_POLL_TIMEOUT_MSEC", "SOCKET_RETRY_CNT"),
        *("SOCKET_RETRY_SLEEP_MSEC", "SYM_CTAS", "THREAD_THRESHOLDS", "TOPO_DUMP_FILE", "TOPO_FILE", "TUNER_PLUGIN"),
        *("WARN_ENABLE_DEBUG_INFO", "WIN_ENABLE", "WORK_ARGS_BYTES", "WORK_FIFO_BYTES"),
    )
)
