"""A head start: what a quick look takes for the host is what the checked inventory says, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.main import get_command

from hsops.cli.ahead import FLAGS, VALUED, Given, look
from hsops.cli.app import app
from hsops.core.errors import ConfigError
from hsops.core.inventory_file import find_server, load, select_hosts
from hsops.core.way import Way, find

INVENTORY = """\
defaults: { host: { python: /venv/bin/python, ssh_config: ~/.hsops-lab/ssh_config } }
hosts:
  one: { ssh: root@one, state_dir: /data/hsops, keepalive: 10 }
  two: { ssh: "root@two:2222", python: ~/venv/bin/python }
  here: { ssh: local }
  boxed: { ssh: root@box, via: [docker, exec, -i, sglang] }
groups: { all: [one, two] }
servers:
  kimi: { host: two, model: /m, patches: [hs-dump] }
  other: { host: one, model: /m }
  near: { host: here, model: /m }
  inside: { host: boxed, model: /m }
patches: { hs-dump: { boundaries: [1] } }
default: kimi
"""
NOWHERE = ("--help", "--plan x", "--group all", "--accept-new", "--host=one", "-vv", "--check --plann x")


@pytest.mark.parametrize(
    "words,expected",
    [
        ("deploy", Given("inventory.yaml", "", ())),
        ("--json -i a.yaml deploy hs-dump --yes", Given("a.yaml", "", ())),
        ("deploy -s kimi --host one --host two --parallel 2", Given("inventory.yaml", "kimi", ("one", "two"))),
        ("deploy --inventory", Given("inventory.yaml", "", ())),
        ("--host one deploy --host two", None),
        ("--inventory a deploy -i b", None),
        ("deploy -i b --inventory a", None),
        ("deploy -s kimi --server other", None),
        ("--host one --host two deploy", Given("inventory.yaml", "", ("one", "two"))),
        ("status", None),
        ("", None),
        ("--host deploy status", None),
        *[(f"deploy {words}", None) for words in NOWHERE],
    ],
)
def test_a_command_line_is_understood_or_left(words: str, expected: Given | None) -> None:
    """A word that is not known may make it mean something else."""
    assert look(words.split()) == expected


def test_its_options_are_those_of_deploy() -> None:
    """Each with a value or without, as the command has it."""
    command = get_command(app).commands["deploy"]  # type: ignore[attr-defined]
    options = {name: param for param in command.params for name in param.opts if name.startswith("-")}

    assert {name: bool(options[name].is_flag or options[name].count) for name in FLAGS | VALUED} == {
        **dict.fromkeys(FLAGS, True),
        **dict.fromkeys(VALUED, False),
    }


@pytest.mark.parametrize("server", ["", "kimi", "other"])
@pytest.mark.parametrize("hosts", [(), ("one",), ("two", "one")])
def test_the_way_is_that_of_the_checked_inventory(tmp_path: Path, server: str, hosts: tuple[str, ...]) -> None:
    """With the defaults of the file and of the model."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    inventory = load(tmp_path / "inventory.yaml")

    found = find(tmp_path / "inventory.yaml", server=server, hosts=hosts)

    meant = inventory.hosts[find_server(inventory, server).host] if server else select_hosts(inventory, hosts, ())[0]
    assert found == Way.of(meant)


def test_the_only_server_is_meant(tmp_path: Path) -> None:
    """As in all commands."""
    (tmp_path / "i.yaml").write_text("hosts: {a: {ssh: a, python: /p}}\nservers: {s: {host: a, model: /m}}\n")

    assert find(tmp_path / "i.yaml") == Way("a", "a", python="/p")


@pytest.mark.parametrize(
    "old,new",
    [
        ("default: kimi", ""),
        ("default: kimi", "default: near"),
        ("default: kimi", "default: inside"),
        ("default: kimi", "default: nobody"),
        ("default: kimi", "default: [kimi]"),
        ("~/venv/bin/python", "venv/bin/python"),
        ('"root@two:2222"', '"root@two\\n"'),
        ('"root@two:2222"', "2222"),
        ("default: kimi", "default: !!bool x"),
        ("hosts:", "hosts: ["),
        ("  two:", "  twoo:"),
    ],
)
def test_what_is_not_as_it_should_be_begins_nothing(tmp_path: Path, old: str, new: str) -> None:
    """Neither does this machine, nor a prefix."""
    assert old in INVENTORY
    (tmp_path / "inventory.yaml").write_text(INVENTORY.replace(old, new))

    assert find(tmp_path / "inventory.yaml") is None


@pytest.mark.parametrize("text", [None, "", "- a", "a: &a [*a]", b"\xff"])
def test_a_file_that_is_no_inventory_begins_nothing(tmp_path: Path, text: str | bytes | None) -> None:
    """What is wrong is told by whoever reads it properly."""
    if text is not None:
        (tmp_path / "inventory.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())

    assert find(tmp_path / "inventory.yaml") is None


@pytest.mark.parametrize("given", [".inf", ".nan", "1" + "0" * 400, '!!int ""', '!!float ""', "0.01", "601"])
def test_a_keepalive_out_of_bounds_begins_nothing(tmp_path: Path, given: str) -> None:
    """OpenSSH's client could not be told some of them."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY.replace("keepalive: 10", f"keepalive: {given}"))

    assert find(tmp_path / "inventory.yaml", server="other") is None
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "inventory.yaml")
    assert [fault.where for fault in caught.value.faults] == ["hosts.one.keepalive"]


def test_a_pipe_is_left_to_who_judges_it(tmp_path: Path) -> None:
    """``-i <(sops -d inventory.yaml)``: what a look takes from it is gone."""
    out, into = os.pipe()
    os.write(into, INVENTORY.encode())
    os.close(into)
    (tmp_path / "inventory.yaml").symlink_to(f"/proc/self/fd/{out}")

    assert find(tmp_path / "inventory.yaml") is None
    with open(out) as pipe:
        assert pipe.read() == INVENTORY


def test_standard_input_is_left_to_who_judges_it(tmp_path: Path) -> None:
    """``-i /dev/stdin <inventory.yaml``: on some systems who opens it goes on where the other stopped."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)

    with (tmp_path / "inventory.yaml").open() as file:
        assert find(Path(f"/dev/fd/{file.fileno()}")) is None
