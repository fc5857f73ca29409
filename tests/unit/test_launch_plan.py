"""A server of the inventory becomes a command, an environment, and a hash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hsops.core.errors import ConfigError
from hsops.core.events import Event, Note
from hsops.core.inventory import HostSpec, ServerSpec
from hsops.core.inventory_file import faults_in, load
from hsops.launch import env_lint
from hsops.launch.nccl import profiles
from hsops.launch.paste import pasted
from hsops.launch.plan import Deployed, Plan, plan
from hsops.launch.start import ensure
from hsops.remote.agent import Agent
from hsops.remote.local import LocalHost
from hsops.remote.lock import Lock

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


def test_a_hook_is_named_to_sglang() -> None:
    """Its flag, its place on Python's path, and a note; a value that is no list is the inventory's fault."""
    deployed = Deployed("0.5.9", {"hs-dump": "3f9c2a"}, hook="/state/hook/3f9c2a")

    found = planned(captures=True, deployed=deployed)

    assert "hsops_hs_dump:hook" in found.argv[found.argv.index("--forward-hooks") + 1]
    assert found.env["PYTHONPATH"] == "/state/hook/3f9c2a{:PYTHONPATH}"
    assert found.command.env["PYTHONPATH"] == "/state/hook/3f9c2a"
    assert any("added --forward-hooks" in note for note in found.notes)
    with pytest.raises(ConfigError, match="not a JSON list"):
        planned(captures=True, deployed=deployed, args={"forward-hooks": "oops"})


def test_every_profile_is_spelt_right() -> None:
    """The profiles pass their own spelling check."""
    for profile in profiles().values():
        assert not list(env_lint.faults(profile.env, {}, env_lint.Machine(), 8))


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
    assert not planned(captures=False, deployed=Deployed(sglang, {})).notes


@pytest.mark.parametrize(
    "sglang,flags,added",
    [
        ("0.5.23", {"disable-radix-cache", "disable-piecewise-cuda-graph"}, "disable-piecewise-cuda-graph"),
        ("", {"disable-radix-cache", "disable-prefill-cuda-graph"}, "disable-prefill-cuda-graph"),
        ("0.5.23", {"disable-radix-cache"}, None),
    ],
)
def test_the_installed_code_says_which_flags_there_are(sglang: str, flags: set[str], added: str | None) -> None:
    """Its version may lie, or not be told; a flag that it does not have would end the start."""
    found = planned(captures=True, deployed=Deployed(sglang, {"hs-dump": "x"}, frozenset(flags)))

    graphs = [word.lstrip("-") for word in found.argv if "cuda-graph" in word]
    assert graphs == ([added] if added else [])


@pytest.mark.parametrize(
    "args",
    [
        {"device": "cpu"},
        {"disable-prefill-cuda-graph": True},
        {"cuda-graph-backend-prefill": "disabled"},
        {"disable-cuda-graph": True},
        {"cuda-graph-config": '{"prefill": {"backend": "disabled"}}'},
    ],
)
def test_only_what_is_missing_is_added(args: dict[str, Any]) -> None:
    """Each of these leaves no prefill graph in 0.5.23."""
    found = planned(
        captures=True, deployed=Deployed("0.5.23", {"hs-dump": "x"}), args={**args, "disable-radix-cache": True}
    )

    assert not found.notes
    assert planned(captures=True, deployed=Deployed("0.5.12", {}), args={"disable-cuda-graph": True}).notes[1:]


@pytest.mark.parametrize(
    "fields,where",
    [
        ({"args": {"tp": 4}}, "servers.kimi.args.tp"),
        ({"args": {"port": 1}}, "servers.kimi.args.port"),
        ({"args": {"model-path": "/other"}}, "servers.kimi.args.model-path"),
        ({"args": {"disable-radix-cache": False}}, "servers.kimi.args.disable-radix-cache"),
        ({"args": {"enable-mixed-chunk": True}}, "servers.kimi.args.enable-mixed-chunk"),
        ({"args": {"speculative-algorithm": "EAGLE3"}}, "servers.kimi.args.speculative-algorithm"),
        ({"args": {"--enable_dp_attention": True}}, "servers.kimi.args.--enable_dp_attention"),
        ({"args": {"pipeline-parallel-size": 2}}, "servers.kimi.args.pipeline-parallel-size"),
        (
            {"args": {"enable-nsa-prefill-context-parallel": True}},
            "servers.kimi.args.enable-nsa-prefill-context-parallel",
        ),
        ({"args": {"enable-piecewise-cuda-graph": True}}, "servers.kimi.args.enable-piecewise-cuda-graph"),
        ({"args": {"cuda-graph-backend-prefill": "breakable"}}, "servers.kimi.args.cuda-graph-backend-prefill"),
        ({"args": {"cuda-graph-config": '{"prefill": {"backend": "full"}}'}}, "servers.kimi.args.cuda-graph-config"),
        ({"args": {"disable-prefill-cuda-graph": False}}, "servers.kimi.args.disable-prefill-cuda-graph"),
        ({"env": {"SGLANG_HS_DUMP_DIR": "/elsewhere"}}, "servers.kimi.env.SGLANG_HS_DUMP_DIR"),
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
    assert "hs-dump patch out of servers.kimi.patches" in wrong.value.fix


INVENTORY = """\
hosts:
  rtx8: {ssh: root@gpu-box, python: /venv/bin/python}
defaults:
  server:
    args:
      enable-mixed-chunk: true
servers:
  kimi-k2.5:
    host: rtx8
    model: /models/Kimi
    patches: [hs-dump]
  other:
    host: rtx8
    model: /models/Other
    args:
      trust-remote-code: true
      pp_size: 2
    patches: [hs-dump]
patches:
  hs-dump: {boundaries: [1]}
"""


def test_a_contradiction_has_its_line_also_when_it_comes_from_the_defaults(tmp_path: Path) -> None:
    """As every other fault of the file."""
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    inventory = load(path)

    places = []
    for server in inventory.servers.values():
        with pytest.raises(ConfigError) as wrong:
            plan(server, HOST, APPLIED, captures=True, fault=faults_in(path))
        places += [(f.line, f.column, f.where) for f in wrong.value.faults]

    assert places == [(6, 7, "defaults.server.args.enable-mixed-chunk"), (17, 7, "servers.other.args.pp_size")]


def test_agreeing_doubles_are_dropped() -> None:
    """The same value twice is no contradiction, and is said once; a harmless value of a forbidden flag is fine."""
    harmless = {"moe-a2a-backend": "none", "enable-mixed-chunk": False, "pp-size": 1, "dp-size": "1"}
    found = planned(captures=True, args={"tp-size": 8, **harmless})

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


def test_added_flags_are_part_of_what_is_compared() -> None:
    """A run without them is another run, though the inventory says the same."""
    with_graphs_off = frozenset(("disable-radix-cache", "disable-prefill-cuda-graph"))
    plans = [
        planned(captures=True, deployed=Deployed("0.5.23", {"hs-dump": "x"}, flags))
        for flags in (with_graphs_off, frozenset(("disable-radix-cache",)))
    ]

    assert plans[0].spec_hash != plans[1].spec_hash


def test_an_api_key_is_masked_but_used() -> None:
    """A key among the arguments is shown to nobody and given to the probes."""
    found = planned(args={"api-key": "sk-very-secret"})

    assert "sk-very-secret" not in str(found.command)
    assert found.api_key == "sk-very-secret"


def test_whatever_takes_a_secret_is_masked() -> None:
    """Other flags too, and variables by their name; the server gets them as they are."""
    found = planned(args={"ssl_keyfile_password": "pass-phrase"}, env={"HF_TOKEN": "hf_abc", "NUM_TOKENS": "9"})

    assert "pass-phrase" not in str(found.command) and "hf_abc" not in str(found.command)
    assert found.command.env["NUM_TOKENS"] == "9" and found.request()["env"]["HF_TOKEN"] == "hf_abc"


def test_a_plan_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    """The shell gives the program the very words and variables that the agent would; secrets are masked."""
    program = tmp_path / "py thon"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    )
    program.chmod(0o755)
    host = HostSpec(name="here", ssh="local", python=str(program), dumps="~/my dumps")
    args: dict[str, Any] = {"api-key": "sk-1", "json-model-override-args": '{"a": "it\'s"}', "cuda-graph-bs": [1, 2]}
    env = {"HF_TOKEN": "hf_1", "HOME_LIKE": "~/x", "EMPTY": "", "ODD": "a b$c`d"}
    server = ServerSpec(
        name="s", host="here", model="~/m", tp=2, port="auto", args=args, env=env, nccl="debug", patches=("hs-dump",)
    )
    found = plan(server, host, Deployed("0.5.9", {"hs-dump": "x"}, hook="/payload"), captures=True)

    text = pasted(found)
    done = subprocess.run(
        ["/bin/sh", "-c", f"run=r7; {text}"],
        env={"HOME": "/home/me", "PATH": os.defpath, "PYTHONPATH": "/mine"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    argv, seen = json.loads(done.stdout)
    shown = {"{model}": "/home/me/m", "{port}": "30000", "sk-1": "***"}
    assert argv == [shown.get(word, word) for word in found.argv[1:]]
    assert {name: seen[name] for name in env} == {**env, "HF_TOKEN": "***"}
    assert seen["SGLANG_HS_DUMP_DIR"] == "/home/me/my dumps/s" and seen["SGLANG_HS_RUN"] == "r7"
    assert seen["NCCL_DEBUG_FILE"] == "./nccl.%h.%p.log" and seen["PYTHONPATH"] == "/payload:/mine"
    assert seen["PATH"] == f"{tmp_path}:{os.defpath}" and seen["PYTHONUNBUFFERED"] == "1"
    assert "sk-1" not in text and "hf_1" not in text


def test_who_sets_a_variable_is_told() -> None:
    """The profile by its name; what the inventory overrides is said with the value that lost."""
    found = planned(nccl="pcie-p2p", env={"NCCL_MIN_NCHANNELS": "16", "A": "1"}, captures=True)

    assert found.origins["NCCL_P2P_LEVEL"] == "nccl profile pcie-p2p"
    assert found.origins["NCCL_MIN_NCHANNELS"] == "inventory (over 8 of nccl profile pcie-p2p)"
    assert found.origins["A"] == "inventory" and found.origins["SGLANG_HS_RUN"] == "hs-dump"
    assert set(found.origins) == set(found.env)


def test_a_start_whose_host_could_not_note_it_stands_with_a_warning() -> None:
    """The server is there: it is no failed launch."""
    told: list[Event] = []
    run = {
        "id": "1129-174020-abcd", "server": "s", "phase": "running", "pid": 1, "started": 0.0, "port": 1, "tp": 1,
        "argv": [], "spec_hash": "s", "directory": "/r", "log": "/r/server.log", "dump_dir": "", "patches": {},
        "sglang": "", "exit": None, "ranks": {}, "helpers": {}, "left": [],
    }  # fmt: skip

    class Noted(Lock):
        def call(self, *_: object, **__: object) -> dict[str, Any]:
            return {"run": run, "warning": "the audit log lacks this launch: no space"}

    lock = Noted(Agent(LocalHost("box"), python="/venv/bin/python", state_dir="/s"), "hsops launch")
    started = ensure([lock], [planned()], (), replace=False, healthy=False, emit=told.append)

    assert started.fresh and started.run.id == run["id"]
    assert told == [Note(f"the server is started, but {started.warning}", planned().host, "warn")]
