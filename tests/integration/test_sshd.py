"""The throw-away OpenSSH server of the lab and of the tests."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hsops.core.errors import LabError
from hsops.lab import sshd
from hsops.lab.processes import started_at


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder, with a space in its name, whose server is gone afterwards."""
    folder = tmp_path / "a lab"
    yield folder
    sshd.stop(folder)


def ssh(folder: Path, *command: str) -> list[str]:
    """An OpenSSH client's command line for the server in ``folder``."""
    return ["ssh", "-F", str(folder / "ssh_config"), "-o", "BatchMode=yes", "lab", *command]


def test_a_client_logs_in_with_the_written_files_alone(folder: Path) -> None:
    """``ssh -F ssh_config lab`` needs nothing else."""
    sshd.start(folder)

    done = subprocess.run(ssh(folder, "echo", "in"), capture_output=True, text=True, timeout=20, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "in\n", "")


def test_starting_twice_is_one_server_on_one_port(folder: Path) -> None:
    """The second start finds the first."""
    assert sshd.start(folder) == sshd.start(folder) == sshd.status(folder)


def test_a_restart_keeps_port_and_keys(folder: Path) -> None:
    """Files that clients hold stay true."""
    first = sshd.start(folder)
    key = (folder / "host_key.pub").read_text()
    sshd.stop(folder)

    assert sshd.start(folder).port == first.port
    assert (folder / "host_key.pub").read_text() == key


def test_a_taken_port_is_left_for_another(folder: Path) -> None:
    """A restart after somebody took the port picks a new one and writes it into the client's files."""
    first = sshd.start(folder)
    sshd.stop(folder)
    with socket.create_server((sshd.ADDRESS, first.port)):
        second = sshd.start(folder)

    assert second.port != first.port
    assert subprocess.run(ssh(folder, "true"), timeout=20, check=False).returncode == 0


def test_a_stale_record_is_no_server(folder: Path) -> None:
    """A pid that now belongs to somebody else is neither believed nor killed."""
    running = sshd.start(folder)
    record = (folder / "sshd.json").read_text()
    sshd.stop(folder)
    (folder / "sshd.json").write_text(record.replace(f'"pid": {running.pid}', f'"pid": {os.getpid()}'))
    (folder / "sshd.pid").write_text(str(os.getpid()))

    assert sshd.status(folder) is None
    assert sshd.stop(folder) is False
    assert sshd.start(folder).pid != os.getpid()


@pytest.mark.parametrize("then", ["start", "stop"])
def test_a_server_whose_record_was_never_written_is_found_and_ended(folder: Path, then: str) -> None:
    """hsops was killed between starting sshd and writing down that it did."""
    lost = sshd.start(folder)
    (folder / "sshd.json").unlink()

    if then == "stop":
        sshd.stop(folder)
        assert started_at(lost.pid) is None
    else:
        found = sshd.start(folder)
        assert started_at(lost.pid) is None
        assert found.port == lost.port


def test_stop_ends_sessions_and_their_commands(folder: Path) -> None:
    """Listener, session and the command in it are gone, and nothing is left to wait for."""
    running = sshd.start(folder)
    client = subprocess.Popen(ssh(folder, "echo $$; exec sleep 600"), stdout=subprocess.PIPE)
    assert client.stdout
    command = psutil.Process(int(client.stdout.readline()))

    assert sshd.stop(folder) is True

    assert client.wait(timeout=10) == 255
    assert not command.is_running()
    assert not psutil.pid_exists(running.pid)
    assert sshd.status(folder) is None


def test_without_openssh_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A machine without sshd gets the command that installs it."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sshd, "_SBIN", ())

    with pytest.raises(LabError, match="sshd is not installed") as caught:
        sshd.start(folder)

    assert caught.value.fix == "apt-get install openssh-server"


def test_a_bad_configuration_is_told_in_its_own_words(folder: Path) -> None:
    """When sshd refuses to start, its last line is the message."""
    with pytest.raises(LabError, match="Frobnicate"):
        sshd.start(folder, extra=("Frobnicate yes",))


@pytest.mark.parametrize("name", ["per%cent", 'quo"te'])
def test_a_folder_that_openssh_cannot_name_is_refused(tmp_path: Path, name: str) -> None:
    """Nothing is made there."""
    with pytest.raises(LabError):
        sshd.start(tmp_path / name)

    assert not (tmp_path / name).exists()
