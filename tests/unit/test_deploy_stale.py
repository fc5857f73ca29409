"""Which running servers have code loaded that is not there any more."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import procs, strangers
from hsops.agent.runs import _reads
from hsops.agent.strangers import is_sglang
from hsops.deploy.stale import judge


def run(**told: Any) -> dict[str, Any]:
    """A run as the agent tells it."""
    return {"id": "r", "server": "s", "patches": {}, "created": 100.0, "reads": True, **told}


@pytest.mark.parametrize(
    "told,since,named",
    [
        ({"patches": {"p": "new"}}, math.inf, None),
        ({"patches": {"p": "old"}}, 0.0, "old"),
        ({"patches": {"p": "old"}, "reads": False}, 0.0, "old"),
        ({}, math.inf, ""),
        ({"patches": None}, math.inf, ""),
        ({"patches": {"q": "new"}}, 101.0, ""),
        ({}, 99.0, None),
        ({}, 0.0, None),
        ({"reads": False}, math.inf, None),
        ({"created": None}, 99.0, ""),
    ],
)
def test_who_started_before_the_change_and_reads_it_is_named(
    told: dict[str, Any], since: float, named: str | None
) -> None:
    """A server that lists the patch by its version, any other one by time and folder."""
    found = judge([run(**told)], "p", "new", since)

    assert [one.identity for one in found] == ([] if named is None else [named])


def test_after_a_revert_every_version_is_old() -> None:
    """Nothing of the patch lies there any more."""
    assert [one.identity for one in judge([run(patches={"p": "1"})], "p", "", math.inf)] == ["1"]


@pytest.mark.parametrize(
    "spec,reads",
    [
        ({"site": "/v/site-packages"}, True),
        ({"site": "/v/site-packages/"}, True),
        ({"site": "/v"}, True),
        ({"site": "/v/site-packages-2"}, False),
        ({"site": "/w/site-packages"}, False),
        ({"site": ""}, False),
        ({}, True),
        ({"site": "/w", "argv": ["python", "--model-path", "/v/site-packages/m"]}, True),
        ({"site": "/w", "argv": ["python", "--model-path=/v/site-packages/m"]}, True),
        ({"site": "/w", "argv": ["python", "v/site-packages"]}, False),
        ({"site": "/w", "argv": ["python", "--file-storage-path", "/v"]}, False),
        ({"site": "/w", "argv": ["python", "--download-dir=/"]}, False),
        ({"site": "/w", "env": {"PYTHONPATH": "/v"}}, False),
        ({"site": "/w", "env": {"PYTHONPATH": "/x:/v/site-packages/mine"}}, True),
        ({"site": "/w", "env": {"PYTHONPATH": "", "HOME": "/v/site-packages"}}, False),
    ],
)
def test_a_server_reads_a_folder_that_it_names(spec: dict[str, Any], reads: bool) -> None:
    """SGLang's, or one of its command line or PYTHONPATH, above or below; one that an older hsops started: perhaps."""
    assert _reads(spec, "/v/site-packages") is reads


def test_links_lead_to_the_same_folder(tmp_path: Path) -> None:
    """A model folder is often one; and a patch may be of a file deep in it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    assert _reads({"site": "/w", "model": str(tmp_path / "link/m")}, str(tmp_path / "real"))
    assert _reads({"site": "/w", "model": str(tmp_path / "link")}, str(tmp_path / "real/code"))


@pytest.mark.parametrize(
    "words,server",
    [
        (["python3", "-m", "sglang.launch_server", "--tp", "8"], True),
        (["/v/bin/python", "-u", "-m", "sglang.srt.entrypoints.http_server"], True),
        (["/v/bin/python3.12", "/v/bin/sglang", "serve"], True),
        (["python", "/src/sglang/python/sglang/launch_server.py"], True),
        (["sglang::scheduler_TP3"], True),
        (["python", "-W", "ignore", "-m", "sglang.launch_server"], True),
        (["python", "-Wignore", "-X", "faulthandler", "-m", "sglang.launch_server"], True),
        (["python", "-Im", "sglang.launch_server"], True),
        (["python", "-m", "tool", "-m", "sglang.launch_server"], False),
        (["python", "-c", "pass", "-m", "sglang.launch_server"], False),
        (["python", "-W", "sglang", "tool.py"], False),
        (["python", "-m", "sglang.bench_serving"], False),
        (["python", "-m", "pip", "install", "sglang"], False),
        (["python", "tool.py", "sglang"], False),
        (["python", "/src/sglang/benchmark/run.py"], False),
        (["vim", "sglang"], False),
        (["python"], False),
        ([""], False),
    ],
)
def test_what_is_an_sglang_server(words: list[str], server: bool) -> None:
    """By its command line."""
    assert is_sglang(words) is server


@pytest.mark.parametrize("space,found", [("mnt:[1]", 1), ("mnt:[2]", 0), ("", 1)], ids=["ours", "another", "hidden"])
def test_a_server_of_a_container_reads_its_own_files(
    space: str, found: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its paths are the same words, and other files; of whom nobody may ask that is not supposed."""
    me, words = os.getpid(), ["/usr/bin/python3", "-m", "sglang.launch_server", "--model-path", f"{tmp_path}/m"]

    def link(path: str) -> str:
        if not space and "self" not in path:
            raise PermissionError(path)
        return "mnt:[1]" if "self" in path else space

    monkeypatch.setattr(os, "listdir", lambda _: [str(me)])
    monkeypatch.setattr(os, "readlink", link)
    monkeypatch.setattr(procs, "argv", lambda pid: words if pid == me else [""])
    monkeypatch.setattr(procs, "run_of", lambda _: "")
    monkeypatch.setattr(procs, "environment", lambda _: {})

    assert [told["pid"] for told in strangers.strangers(str(tmp_path), ())] == [me] * found
