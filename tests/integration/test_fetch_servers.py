"""The dumps of several servers that shared a prompt list, in one folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsops.core.inventory import HostSpec
from tests.dump_maker import make
from tests.fetching import Place, envelope

SERVERS = """\
servers: { a: { host: here, model: /m, patches: [hs-dump] }, b: { host: here, model: /m, patches: [hs-dump] } }
patches: { hs-dump: { boundaries: [1, 3] } }
"""


@pytest.fixture
def here(tmp_path: Path, write_inventory: Callable[..., Path]) -> Place:
    """Two servers of this machine: three dumps and two, one of them of a prompt that the first has done as well."""
    dumps = tmp_path / "dumps"
    spec = HostSpec(
        name="here", ssh="local", python=sys.executable, state_dir=str(tmp_path / "state"), dumps=str(dumps)
    )
    for server, id_ in (("a", "p0"), ("a", "p1"), ("a", "p2"), ("b", "p2"), ("b", "p3")):
        make(dumps / server, id_, range(4), seed=ord(server))
    return Place(write_inventory(spec, more=SERVERS), dumps / "a", tmp_path / "to")


def test_they_come_into_one_folder_that_verifies(here: Place, tmp_path: Path) -> None:
    """Each prompt once, of the server that was named first; a rerun brings nothing and changes nothing."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"p{i}", "input_ids": [0, 1, 2, 3]}) + "\n" for i in range(4)))

    def fetch() -> dict[str, Any]:
        data: dict[str, Any] = here.fetch("--server", "a,b")["data"]
        return data

    first, again = fetch(), fetch()

    assert (first["samples"], first["fetched"], again["fetched"]) == (4, 4, 0)
    assert [one["server"] for one in first["servers"]] == ["a", "b"]
    assert (here.to / "p2.safetensors").read_bytes() == (here.source / "p2.safetensors").read_bytes()
    verified = here.verify("--prompts", str(prompts))["data"]
    assert (verified["findings"], verified["compared"]) == ([], 4)


@pytest.mark.parametrize("words", [("--follow",), ("--from", "/tmp")])
def test_what_is_of_one_server_is_refused_for_several(here: Place, words: tuple[str, ...]) -> None:
    """Exit 2, and nothing is made here."""
    (error,) = envelope(here.start_fetch("-s", "a", "-s", "b", *words), 2)["errors"]

    assert error["fix"] and not here.to.exists()


def test_without_a_folder_it_is_named_after_them(here: Place, tmp_path: Path) -> None:
    """As one server's is after that."""
    words = [sys.executable, "-m", "hsops", "-i", str(here.inventory), "fetch", "-s", "a,b"]

    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert len(list((tmp_path / "hs/a+b").glob("*.safetensors"))) == 4
    assert [line.partition(":")[0] for line in done.stdout.splitlines() if " tokens · " in line] == ["a", "b"]
