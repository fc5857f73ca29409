"""What README and docs/ show of inventory.yaml, prompts and ``--json`` is taken by what reads it.

A page shows a part: what it leaves out is added here, so that the part is read as it would be in a whole file.
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from hsops.core.events import ignore
from hsops.core.inventory import HostSpec, Inventory, ServerSpec
from hsops.core.inventory_file import load
from hsops.core.prompt_files import read_prompts
from hsops.render.console import SCHEMA
from scripts.schemas import event_kinds
from tests.documents import PAGES, Block, blocks

ALL = [block for page in PAGES for block in blocks(page)]
YAML = [block for block in ALL if block.language == "yaml"]
LINES = [
    block for block in ALL if block.language in ("", "json") and all(x.startswith("{") for x in block.text.splitlines())
]
PROMPTS = [block for block in LINES if '"schema"' not in block.text]
OUTPUT = [block for block in LINES if '"schema"' in block.text]
HOST = {"ssh": "root@gpu-box", "python": "/root/venv/bin/python"}
SERVER = {"host": "rtx8", "model": "/models/Kimi-K2.5"}


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.place)
def test_a_part_of_inventory_yaml_is_one(block: Block, tmp_path: Path) -> None:
    """Whole sections, or keys of a host or a server."""
    path = tmp_path / "inventory.yaml"
    path.write_text(yaml.safe_dump(whole(block)))

    load(path)


@pytest.mark.parametrize("block", PROMPTS, ids=lambda block: block.place)
def test_prompts_are_prompts(block: Block, tmp_path: Path) -> None:
    """As many as there are lines."""
    path = tmp_path / "train.jsonl"
    path.write_text(block.text)

    assert len(read_prompts(str(path), ignore)) == len(block.text.splitlines())


@pytest.mark.parametrize("block", OUTPUT, ids=lambda block: block.place)
def test_output_is_what_a_command_writes(block: Block) -> None:
    """Events with keys that they have, and an envelope at the end."""
    *events, envelope = map(json.loads, block.text.splitlines())

    assert envelope.keys() == {"schema", "command", "ok", "data", "errors"}
    for event in events:
        kind = event_kinds()[event["event"]]
        assert event.keys() - {"schema", "command", "event"} <= set(kind.__dataclass_fields__), event
    assert {line["schema"] for line in (*events, envelope)} == {SCHEMA}


def test_there_is_something_to_read() -> None:
    """Or the tests above would hold of nothing."""
    assert len(YAML) > 10 and PROMPTS and OUTPUT


def whole(block: Block) -> dict[str, Any]:
    """The part, and what it needs."""
    part: dict[str, Any] = yaml.safe_load(dedent(block.text))
    if not part.keys() <= Inventory.model_fields.keys():
        assert part.keys() <= HostSpec.model_fields.keys() | ServerSpec.model_fields.keys(), block.place
        of_host = part.keys() <= HostSpec.model_fields.keys()
        part = {"hosts": {"rtx8": {**HOST, **part}}} if of_host else {"servers": {"kimi": {**SERVER, **part}}}
    servers = part.setdefault("servers", {})
    groups = part.get("groups", {})
    hosts = {host for members in groups.values() for host in members}
    for server in servers.values():
        hosts |= {server["host"]} if "host" in server else {*server["nodes"]} - groups.keys()
    given = part.setdefault("hosts", {"rtx8": HOST})
    part["hosts"] = {**dict.fromkeys(hosts, HOST), **given}
    patches = part.setdefault("patches", {})
    used = {name for server in servers.values() for name in server.get("patches", ())}
    part["patches"] = {**{name: {"boundaries": [3, 31, 59]} for name in used}, **patches}
    if unused := patches.keys() - used:
        servers["other"] = {**SERVER, "host": min(part["hosts"]), "patches": sorted(unused)}
    return part
