"""``hsops doctor`` on hosts that cannot be used: the real program, its exit code and what it tells."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hsops.core.inventory import HostSpec
from tests.hosts import Server, closed_port, run_dir

WriteInventory = Callable[..., Path]


def doctor(inventory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``hsops doctor``; no run may show a traceback."""
    command = [sys.executable, "-m", "hsops", "-i", str(inventory), "doctor", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100, check=False, env=run_dir()
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


def without_known_key(server: Server, tmp_path: Path) -> HostSpec:
    """The session's host with an empty known_hosts."""
    text = (server.folder / "ssh_config").read_text()
    (tmp_path / "config").write_text(text.replace(str(server.folder / "known_hosts"), str(tmp_path / "known_hosts")))
    return server.spec.model_copy(update={"ssh_config": str(tmp_path / "config")})


def test_a_reachable_host_is_fine(sshd_host: HostSpec, write_inventory: WriteInventory) -> None:
    """The comparison for what follows."""
    done = doctor(write_inventory(sshd_host))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(sshd_host.name)
    assert f"free for {sshd_host.dumps}" in done.stdout


def test_an_unreachable_host_is_exit_5(server: Server, write_inventory: WriteInventory, tmp_path: Path) -> None:
    """Nothing listens on its port."""
    with closed_port() as port:
        text = (server.folder / "ssh_config").read_text().replace(f"Port {server.port}", f"Port {port}")
        (tmp_path / "config").write_text(text)
        inventory = write_inventory(server.spec.model_copy(update={"ssh_config": str(tmp_path / "config")}))

        done, machine = doctor(inventory), doctor(inventory, "--json")

    assert (done.returncode, machine.returncode) == (5, 5)
    assert f"{server.spec.name}: nothing listens on 127.0.0.1:{port}" in done.stderr
    assert json.loads(machine.stdout)["errors"][0]["type"] == "UnreachableError"


def test_one_host_that_is_down_hides_no_other(tmp_path: Path) -> None:
    """Both are told; the exit code is the failure's."""
    (tmp_path / "inventory.yaml").write_text(
        f"hosts:\n  down: {{ssh: 'nobody@127.0.0.1:1', python: /p}}\n"
        f"  here: {{ssh: local, python: {sys.executable}, state_dir: {tmp_path}/state}}\n"
    )

    done, machine = doctor(tmp_path / "inventory.yaml"), doctor(tmp_path / "inventory.yaml", "--json")

    assert (done.returncode, machine.returncode) == (5, 5)
    assert "here  Python" in done.stdout and "down: nothing listens on 127.0.0.1:1" in done.stdout
    envelope = json.loads(machine.stdout)
    assert list(envelope["data"]["hosts"]) == ["here"] and envelope["errors"][0]["host"] == "down"


def test_an_unknown_host_key_is_exit_5_and_accept_new_cures_it(
    server: Server, write_inventory: WriteInventory, tmp_path: Path
) -> None:
    """The remedy that the error names works, once and for good."""
    inventory = write_inventory(without_known_key(server, tmp_path))

    refused = doctor(inventory)
    cured = doctor(inventory, "--accept-new")
    afterwards = doctor(inventory)

    assert refused.returncode == 5
    assert "the host key of [127.0.0.1]:" in refused.stderr
    assert "hsops doctor --accept-new" in refused.stderr
    assert (cured.returncode, afterwards.returncode) == (0, 0)


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/cat"])
def test_a_wrong_remote_python_is_exit_1(sshd_host: HostSpec, write_inventory: WriteInventory, python: str) -> None:
    """Missing, or something else."""
    inventory = write_inventory(sshd_host.model_copy(update={"python": python}))

    done, machine = doctor(inventory), doctor(inventory, "--json")

    assert (done.returncode, machine.returncode) == (1, 1)
    assert python in done.stderr
    assert "fix: set hosts.<name>.python" in done.stderr
    assert json.loads(machine.stdout)["errors"][0]["host"] == sshd_host.name


def test_a_refused_key_is_exit_5(server: Server, write_inventory: WriteInventory, tmp_path: Path) -> None:
    """A key that the host does not know."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True, timeout=60)
    text = (server.folder / "ssh_config").read_text()
    (tmp_path / "config").write_text(text.replace(str(server.folder / "client_key"), str(tmp_path / "key")))

    done = doctor(write_inventory(server.spec.model_copy(update={"ssh_config": str(tmp_path / "config")})))

    assert done.returncode == 5
    assert "accepted none of our keys" in done.stderr


def test_a_silent_host_is_exit_5_within_its_deadline(
    server: Server, write_inventory: WriteInventory, tmp_path: Path
) -> None:
    """It accepts and says nothing; hsops does not wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        text = (server.folder / "ssh_config").read_text().replace(f"Port {server.port}", f"Port {port}")
        (tmp_path / "config").write_text(text)

        done = doctor(write_inventory(server.spec.model_copy(update={"ssh_config": str(tmp_path / "config")})))

    assert done.returncode == 5
    assert "did not finish the SSH handshake within 15 s" in done.stderr
