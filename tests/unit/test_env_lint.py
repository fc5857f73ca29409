"""Environment variables of a server: names that nobody reads, values that cannot be, pairs that contradict."""

from __future__ import annotations

import pytest

from hsops.launch import env_lint
from hsops.launch.env_lint import Machine

HOST = Machine(
    ("lo", "eth0", "ib0"),
    ("mlx5_0", "mlx5_1"),
    frozenset({"SGLANG_ENABLE_JIT_DEEPGEMM", "SGLANG_HEALTH_CHECK_TIMEOUT", "SGLANG_CUTOFF", "SGLANG_HOST_IP"}),
    {"SGLANG_ENABLE_JIT_DEEPGEMM": "Bool", "SGLANG_HEALTH_CHECK_TIMEOUT": "Int", "SGLANG_CUTOFF": "Float"},
)


def said(env: dict[str, str], profile: dict[str, str] | None = None, tp: int = 2) -> dict[str, str]:
    """Variable -> what is wrong."""
    return dict(env_lint.faults(env, profile or {}, HOST, tp))


@pytest.mark.parametrize(
    "name,value,words",
    [
        ("NCCL_P2P_LEVL", "SYS", "did you mean NCCL_P2P_LEVEL?"),
        ("TORCH_NCCL_BLOKING_WAIT", "1", "did you mean TORCH_NCCL_BLOCKING_WAIT?"),
        ("CUDA_VISIBLE_DEVICE", "0,1", "did you mean CUDA_VISIBLE_DEVICES?"),
        ("SGLANG_ENABLE_JIT_DEEPGEM", "0", "the installed SGLang reads; did you mean SGLANG_ENABLE_JIT_DEEPGEMM?"),
        ("NCLL_DEBUG", "INFO", "did you mean NCCL_DEBUG?"),
        ("nccl_p2p_level", "SYS", "did you mean NCCL_P2P_LEVEL?"),
        ("CDUA_VISIBLE_DEVICES", "0,1", "did you mean CUDA_VISIBLE_DEVICES?"),
        ("SGLNAG_USE_CPU_ENGINE", "1", "did you mean SGLANG_USE_CPU_ENGINE?"),
        ("Torch_NCCL_BLOCKING_WAIT", "1", "did you mean TORCH_NCCL_BLOCKING_WAIT?"),
        ("NCCL_P2P_LEVEL", "ALL", "'ALL' is none of LOC"),
        ("NCCL_DEBUG", "VERBOSE", "'VERBOSE' is none of"),
        ("NCCL_PROTO", "LL,Fast", "'FAST' is none of LL, LL128, SIMPLE"),
        ("NCCL_ALGO", "^Ringg", "'RINGG' is none of"),
        ("NCCL_DEBUG_SUBSYS", "INIT,GRAF", "'GRAF' is none of"),
        ("NCCL_IB_DISABLE", "true", "'true' is not 0 or 1"),
        ("NCCL_RAS_ADDR", "28029", "'28029' is not HOST:PORT"),
        ("NCCL_MIN_NCHANNELS", "eight", "'eight' is no whole number"),
        ("NCCL_BUFFSIZE", "32M", "'32M' is no whole number"),
        ("NCCL_SOCKET_IFNAME", "eno1", "the host has no network interface 'eno1'; it has lo, eth0, ib0"),
        ("NCCL_SOCKET_IFNAME", "=eth", "no network interface '=eth'"),
        ("NCCL_IB_HCA", "mlx4", "no InfiniBand or RoCE device 'mlx4'"),
        ("SGLANG_ENABLE_JIT_DEEPGEMM", "on", "'on' is none of true, 1, yes, y, false, 0, no, n: the installed SGLang"),
        ("SGLANG_HEALTH_CHECK_TIMEOUT", "20s", "'20s' is no whole number: the installed SGLang would warn"),
        ("SGLANG_CUTOFF", "half", "'half' is no number"),
        ("CUDA_VISIBLE_DEVICES", "0", "1 devices for tp 2"),
        ("CUDA_VISIBLE_DEVICES", "3,3", "names a device twice"),
    ],
)
def test_what_cannot_be_meant(name: str, value: str, words: str) -> None:
    """One variable, one sentence that says what would be right."""
    found = said({name: value})

    assert list(found) == [name] and words in found[name], found


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_P2P_LEVEL": "sys", "NCCL_PROTO": "^LL128", "NCCL_ALGO": "Ring,Tree", "NCCL_DEBUG_SUBSYS": "INIT,^NET"},
        {"NCCL_ALGO": "allreduce:ring"},
        {"SGLANG_ENABLE_JIT_DEEPGEMM": "True", "SGLANG_HEALTH_CHECK_TIMEOUT": "-1", "SGLANG_CUTOFF": "1e-3"},
        {"SGLANG_ENABLE_JIT_DEEPGEMM": "", "SGLANG_HEALTH_CHECK_TIMEOUT": "1_000", "SGLANG_CUTOFF": "3"},
        {"SGLANG_HOST_IP": "anything"},
        {"NCCL_SOCKET_IFNAME": "eth,ib"},
        {"NCCL_SOCKET_IFNAME": "=eth0"},
        {"NCCL_RAS_ADDR": "localhost:28029"},
        {"NCCL_RAS_ADDR": "[::1]:28029"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"},
        {"NCCL_IB_HCA": "mlx5"},
        {
            "RCCL_DEBUG": "1",
            "HCCL_SOCKET_IFNAME": "e",
            "UCCL_DEBUG": "1",
            "CNCL_DEBUG": "1",
            "CONDA_PATH": "/c",
            "SLANG_X": "1",
        },
        {"CUDA_VISIBLE_DEVICES": "GPU-1a, GPU-2b"},
        {"NCCL_SOMETHING_OF_NEXT_YEAR": "1", "SGLANG_HS_WRITERS": "2", "MY_OWN": "x", "CUDA_HOME": "/usr/local/cuda"},
        {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
        {"NCCL_ALGO": "Ring,NVLS", "NCCL_NVLS_ENABLE": "0", "NCCL_SHM_DISABLE": "1", "NCCL_MIN_CTAS": "4"},
        {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "mlx5", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
    ],
)
def test_what_is_fine(env: dict[str, str]) -> None:
    """Prefixes, exclusions, whole names, ports, other spellings of the same word; names like nothing known."""
    assert said(env) == {}


@pytest.mark.parametrize(
    "env,profile,name",
    [
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "SYS"}, {}, "NCCL_P2P_LEVEL"),
        ({"NCCL_MAX_NCHANNELS": "4"}, {"NCCL_MIN_NCHANNELS": "8"}, "NCCL_MAX_NCHANNELS"),
        ({"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, {}, "TORCH_NCCL_BLOCKING_WAIT"),
        ({"NCCL_MIN_CTAS": "16"}, {"NCCL_MAX_CTAS": "8"}, "NCCL_MIN_CTAS"),
        ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5_0"}, {}, "NCCL_IB_HCA"),
        ({"NCCL_IB_HCA": "mlx5_0"}, {"NCCL_IB_DISABLE": "1"}, "NCCL_IB_HCA"),
        ({"NCCL_P2P_LEVEL": "SYS"}, {"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_LEVEL"),
        ({"NCCL_ALGO": "NVLS"}, {"NCCL_NVLS_ENABLE": "0"}, "NCCL_ALGO"),
        ({"NCCL_SHM_DISABLE": "1"}, {"NCCL_P2P_DISABLE": "1"}, "NCCL_SHM_DISABLE"),
        ({"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, {}, "TORCH_NCCL_DUMP_ON_TIMEOUT"),
    ],
)
def test_pairs(env: dict[str, str], profile: dict[str, str], name: str) -> None:
    """Of two that contradict each other one is named; a profile's value counts where nothing overrides it."""
    assert list(said(env, profile)) == [name]


def test_what_a_profile_takes_away_says_so() -> None:
    """The variable that is stronger does not stand in the inventory; with the way out of it there is no fault."""
    profile = {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}
    found = said({"NCCL_IB_HCA": "mlx5_0", "NCCL_P2P_LEVEL": "SYS"}, profile)

    assert "of the nccl profile; set NCCL_IB_DISABLE: '0' beside it" in found["NCCL_IB_HCA"]
    assert "of the nccl profile; set NCCL_P2P_DISABLE: '0' beside it" in found["NCCL_P2P_LEVEL"]
    both = {"NCCL_IB_DISABLE": "0", "NCCL_IB_HCA": "mlx5_0", "NCCL_P2P_DISABLE": "0", "NCCL_P2P_LEVEL": "SYS"}
    assert said(both, profile) == {}


def test_overriding_a_profile_is_no_contradiction() -> None:
    """NCCL_P2P_DISABLE beside a profile's NCCL_P2P_LEVEL is what overriding is for."""
    assert said({"NCCL_P2P_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "SYS"}) == {}


def test_a_host_that_nobody_asked_is_not_judged() -> None:
    """Without facts only names and values that are wrong anywhere are faults."""
    env = {"NCCL_SOCKET_IFNAME": "eno1", "NCCL_IB_HCA": "mlx9", "SGLANG_ENABLE_JIT_DEEPGEM": "0"}

    assert list(env_lint.faults(env, {}, Machine(), 1)) == []
    assert env_lint.wants_machine(env) and not env_lint.wants_machine({"NCCL_P2P_LEVEL": "SYS"})


@pytest.mark.parametrize(
    "env,words",
    [
        ({"NCCL_RAS_ENABLE": "0"}, "which rank is behind"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "several times slower"),
        ({"PYTHONUNBUFFERED": ""}, "buffers"),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/x"}, "do not reach the server's log"),
        ({"NCCL_DEBUG": "INFO"}, ""),
        ({"NCCL_DEBUG": "NONE"}, "do not reach the log"),
        ({"NCCL_CHECKS_DISABLE": "1"}, "hang instead of an error"),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, "no record of collectives"),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, "SGLang sets it itself"),
    ],
)
def test_what_costs_or_hides(env: dict[str, str], words: str) -> None:
    """It works, and the launch says what it costs."""
    found = list(env_lint.warnings(env))

    assert [words in one for one in found] == ([True] if words else [])
