"""A server of the inventory becomes a command, an environment, and a hash."""

from __future__ import annotations

from typing import Any

import pytest

from hsops.core.errors import ConfigError
from hsops.core.inventory import HostSpec, ServerSpec
from hsops.launch.nccl import PROFILES, misspelt
from hsops.launch.plan import Deployed, Plan, plan

HOST = HostSpec(name="rtx8", ssh="root@gpu-box", python="/venv/bin/python")
APPLIED = Deployed("0.5.9", {"hs-dump": "3f9c2a"})


def planned(*, captures: bool = False, deployed: Deployed = APPLIED, **fields: Any) -> Plan:
    given: dict[str, Any] = {"name": "kimi", "host": "rtx8", "model": "/models/Kimi", "tp": 8, "port": 8000}
    return plan(ServerSpec(**{**given, **fields}), HOST, deployed, captures=captures)


def test_the_whole_line() -> None:
    """Every kind of argument ends up as SGLang reads it: bare flag, no flag, value, values, JSON."""
    args: dict[str, Any] = {
        "trust-remote-code": True,
        "enable-metrics": False,
        "mem_fraction_static": 0.88,
        "--attention-backend": "flashinfer",
        "cuda-graph-bs": [1, 2, 4],
        "model-loader-extra-config": '{"num_threads": 16}',
    }

    found = planned(args=args)

    assert str(found.command) == (
        "/venv/bin/python -m sglang.launch_server --model-path /models/Kimi --tp-size 8 --port 8000 "
        "--trust-remote-code --mem-fraction-static 0.88 --attention-backend flashinfer --cuda-graph-bs 1 2 4 "
        "--model-loader-extra-config '{\"num_threads\": 16}'"
    )


def test_environment_wins_over_the_profile() -> None:
    """A profile gives the base, the server's own values win, the capture's variables are added."""
    found = planned(nccl="pcie-p2p", env={"NCCL_MIN_NCHANNELS": "16"}, captures=True)

    assert found.env["NCCL_P2P_LEVEL"] == "SYS"
    assert found.env["NCCL_MIN_NCHANNELS"] == "16"
    assert found.env["SGLANG_HS_RUN"] == "{run}"
    assert found.command.env["SGLANG_HS_DUMP_DIR"] == "/dev/shm/sglang_hs/kimi"


def test_every_profile_is_spelt_right() -> None:
    """The profiles pass their own spelling check."""
    names = {name for profile in PROFILES.values() for name in profile.env}

    assert not [name for name in names if misspelt(name)]


@pytest.mark.parametrize(
    "sglang,flag",
    [
        ("0.5.9", None),
        ("0.5.12.post1", "--disable-piecewise-cuda-graph"),
        ("0.5.23", "--disable-prefill-cuda-graph"),
    ],
)
def test_what_the_patch_needs_is_added_and_said(sglang: str, flag: str | None) -> None:
    """hs-dump's flags are added for the version that is there, with the reason."""
    found = planned(captures=True, deployed=Deployed(sglang, {"hs-dump": "x"}))

    added = [word for word in found.argv if word.startswith("--disable")]
    assert added == ["--disable-radix-cache", *([flag] if flag else [])]
    assert len(found.notes) == len(added) and "no rows" in found.notes[0]


@pytest.mark.parametrize(
    "fields,where",
    [
        ({"args": {"tp": 4}}, "servers.kimi.args.tp"),
        ({"args": {"port": 1}}, "servers.kimi.args.port"),
        ({"args": {"model-path": "/other"}}, "servers.kimi.args.model-path"),
        ({"args": {"disable-radix-cache": False}}, "servers.kimi.args.disable-radix-cache"),
        ({"args": {"enable-mixed-chunk": True}}, "servers.kimi.args.enable-mixed-chunk"),
        ({"args": {"speculative-algorithm": "EAGLE3"}}, "servers.kimi.args.speculative-algorithm"),
        ({"nccl": "pcie-p2q"}, "servers.kimi.nccl"),
        ({"env": {"NCCL_P2P_LEVL": "SYS"}}, "servers.kimi.env.NCCL_P2P_LEVL"),
    ],
)
def test_contradictions(fields: dict[str, Any], where: str) -> None:
    """What cannot be meant is an error that names its place."""
    with pytest.raises(ConfigError) as wrong:
        planned(captures=True, **fields)

    assert [fault.where for fault in wrong.value.faults] == [where]


def test_every_contradiction_at_once() -> None:
    """Faults are told together."""
    with pytest.raises(ConfigError) as wrong:
        planned(captures=True, nccl="no", args={"tp": 4, "enable-mixed-chunk": True})

    assert len(wrong.value.faults) == 3


def test_agreeing_doubles_are_dropped() -> None:
    """The same value twice is no contradiction, and is said once; a harmless value of a forbidden flag is fine."""
    found = planned(captures=True, args={"tp-size": 8, "moe-a2a-backend": "none", "enable-mixed-chunk": False})

    assert found.argv.count("--tp-size") == 1
    assert "--enable-mixed-chunk" not in found.argv


@pytest.mark.parametrize(
    "fields",
    [
        {"tp": 4},
        {"env": {"A": "1"}},
        {"args": {"x": 1}},
        {"port": "auto"},
        {"model": "/models/Other"},
        {"deployed": Deployed("0.5.9", {"hs-dump": "other"})},
        {"deployed": Deployed("0.5.10", {"hs-dump": "3f9c2a"})},
    ],
)
def test_hash_changes_with_what_matters(fields: dict[str, Any]) -> None:
    """Equal launches have equal hashes; any difference in command, environment, patch or version another one."""
    assert planned().spec_hash == planned().spec_hash
    assert planned(**fields).spec_hash != planned().spec_hash


def test_an_api_key_is_masked_but_used() -> None:
    """A key among the arguments is shown to nobody and given to the probes."""
    found = planned(args={"api-key": "sk-very-secret"})

    assert "sk-very-secret" not in str(found.command)
    assert found.api_key == "sk-very-secret"
