"""Where ``ssh:`` of the inventory leads."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from hsops.core.errors import ConfigError
from hsops.core.inventory import HostSpec
from hsops.remote.openssh import translate
from hsops.remote.target import arguments, parse

HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)


def spec(ssh: str, config: str | None = None) -> HostSpec:
    """A host reached as ``ssh``."""
    return HostSpec(name="box", ssh=ssh, ssh_config=config, python="/usr/bin/python3")


def test_what_to_try_by_hand_leads_to_the_same_place() -> None:
    """With the port and the file that the inventory names."""
    destination, config, at_port = arguments(spec("root@box:2222", "/etc/my ssh"))
    lines = ["hostname box", "user root", "port 2222"]

    error = translate("no route", parse("box", destination, lines, config=config, at_port=at_port))

    assert error.fix == "try it: ssh -F '/etc/my ssh' -p 2222 root@box true"


@pytest.mark.parametrize(
    "ssh, expected",
    [
        ("box", ("box", (), ())),
        ("root@box", ("root@box", (), ())),
        ("root@box:2222", ("root@box", (), ("-p", "2222"))),
        ("box:22", ("box", (), ("-p", "22"))),
        ("root@[fe80::1]:22", ("root@fe80::1", (), ("-p", "22"))),
        ("[::1]", ("::1", (), ())),
        ("root@fe80::1", ("root@fe80::1", (), ())),
        ("ssh://root@box:22", ("ssh://root@box:22", (), ())),
        ("user@domain@box", ("user@domain@box", (), ())),
    ],
)
def test_an_address_becomes_arguments_of_ssh(ssh: str, expected: object) -> None:
    """A port is an option for OpenSSH, brackets are ours."""
    assert arguments(spec(ssh)) == expected


def test_a_configuration_file_is_named_to_ssh() -> None:
    """With the home folder filled in."""
    assert arguments(spec("box", "~/x"))[1] == ("-F", str(Path("~/x").expanduser()))


@pytest.mark.parametrize("ssh", ["", "root@", "box:", "box:port", "[box"])
def test_what_is_no_address_is_a_fault_of_the_inventory(ssh: str) -> None:
    """Named with its key."""
    with pytest.raises(ConfigError, match=r"hosts\.box\.ssh"):
        arguments(spec(ssh))


def resolved(*lines: str, destination: str = "box") -> object:
    """What ``ssh -G`` printed, parsed."""
    return parse("box", destination, ["hostname 10.0.0.7", "port 22", "user root", *lines])


def test_the_answer_of_openssh_is_read() -> None:
    """Host, files, switches."""
    target = parse(
        "box",
        "root@box",
        [
            "user root",
            "hostname 10.0.0.7",
            "port 2222",
            "identitiesonly yes",
            "identityfile ~/.ssh/id_%r@%h",
            "identityfile /keys/100%%",
            "userknownhostsfile /root/.ssh/known_hosts ~/.ssh/known_hosts2",
            "globalknownhostsfile none",
            "stricthostkeychecking accept-new",
            "hashknownhosts yes",
            "proxycommand nc %h %p %n %r",
        ],
    )

    assert str(target) == "root@10.0.0.7:2222"
    assert target.key_name == "[10.0.0.7]:2222"
    assert target.identities == (HOME / ".ssh/id_root@10.0.0.7", Path("/keys/100%"))
    assert target.known_hosts == (Path("/root/.ssh/known_hosts"), HOME / ".ssh/known_hosts2")
    assert (target.identities_only, target.accept_new, target.hash_names, target.agent) == (True, True, True, True)
    assert target.proxy == "nc 10.0.0.7 2222 box root"


def test_a_file_with_a_blank_in_its_name_stays_whole(tmp_path: Path) -> None:
    """``ssh -G`` quotes nothing."""
    (tmp_path / "known hosts").touch()
    target = parse("b", "b", ["hostname b", "port 22", "user u", f"userknownhostsfile {tmp_path}/known hosts"])

    assert target.known_hosts == (tmp_path / "known hosts",)


@pytest.mark.parametrize(
    "line, field, value",
    [
        ("hostkeyalias gpu", "key_name", "gpu"),
        ("hostkeyalias none", "key_name", "10.0.0.7"),
        ("identityagent none", "agent", False),
        ("proxyjump none", "jump", ""),
        ("proxyjump a,b", "jump", "a,b"),
        ("stricthostkeychecking ask", "accept_new", False),
        ("stricthostkeychecking true", "accept_new", False),
        ("stricthostkeychecking false", "accept_new", True),  # never more than accept-new: a changed key is refused
    ],
)
def test_single_options(line: str, field: str, value: object) -> None:
    """Each as OpenSSH prints it."""
    assert getattr(resolved(line), field) == value
