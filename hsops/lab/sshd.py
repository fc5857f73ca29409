"""One throw-away OpenSSH server on 127.0.0.1: keys, configuration, start, stop.

Everything lies in one folder: ``host_key``, ``client_key``, ``sshd_config``, ``known_hosts``, ``ssh_config`` (for
clients), ``sshd.pid``, ``sshd.json`` and ``sshd.log``. Runs as root and as a plain user, who then is the only login.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hsops.core.errors import LabError
from hsops.lab.processes import daemons, end_tree, started_at

ADDRESS = "127.0.0.1"
INSTALL = "apt-get install openssh-server"
_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/local/bin", "/opt/homebrew/sbin")


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers.

    Args:
        pid: of the listener.
        started: its start time in clock ticks since boot, which tells it from a later process with the same pid.
        port: on 127.0.0.1.
    """

    pid: int
    started: int
    port: int


def start(folder: Path, *, alias: str = "lab", extra: tuple[str, ...] = (), patience: float = 20.0) -> Running:
    """Start the server of ``folder``, or find it running. It survives this process.

    Args:
        folder: made when missing, mode 0700.
        alias: the ``Host`` of the client's ``ssh_config``.
        extra: further lines of sshd_config; they win over ours.
        patience: seconds until it must answer.

    Raises:
        LabError: sshd is not installed, or does not come up.
    """
    folder = folder.absolute()
    if any(c in str(folder) for c in '%"\n'):
        raise LabError(f"OpenSSH's files cannot name the folder {str(folder)!r}", fix="choose one without % and quotes")
    program = find()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder):
        if running := status(folder):
            return running
        _end_strays(folder)
        for name in ("host_key", "client_key"):
            _key(folder / name)
        return _start(program, folder, alias, extra, time.monotonic() + patience)


def status(folder: Path) -> Running | None:
    """The server of ``folder`` if it runs; a stale record means no."""
    try:
        running = Running(**json.loads((folder / "sshd.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return running if started_at(running.pid) == running.started else None


def stop(folder: Path, *, patience: float = 5.0) -> bool:
    """End the server and every process of its sessions; False when it did not run.

    Processes that a session started and detached for good (a launched SGLang) are not its tree and stay.
    """
    if not folder.is_dir():
        return False
    with _locked(folder):
        running = status(folder)
        if running:
            end_tree(running.pid, patience=patience)
        _end_strays(folder)
        for name in ("sshd.json", "sshd.pid"):
            (folder / name).unlink(missing_ok=True)
    return running is not None


def _end_strays(folder: Path) -> None:
    """A server that was started when hsops was killed, before ``sshd.json`` said so: nobody would ever end it."""
    for pid in daemons("sshd", folder.absolute() / "sshd_config"):
        end_tree(pid, patience=1.0)


def find() -> str:
    """The absolute path of sshd, which must be started by one.

    Raises:
        LabError: it is not installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SBIN])
    program = shutil.which("sshd", path=path)
    if not program or not shutil.which("ssh-keygen"):
        raise LabError(
            f"{'ssh-keygen' if program else 'sshd'} is not installed on this machine",
            why="the lab is reached over a real OpenSSH server, as every other host",
            fix=INSTALL,
        )
    return str(Path(program).absolute())


def _start(program: str, folder: Path, alias: str, extra: tuple[str, ...], deadline: float) -> Running:
    port = _last_port(folder)
    while True:
        port = port if port and _is_free(port) else _free_port()
        _write_files(folder, alias, port, extra)
        child = _spawn(program, folder)
        if _answers(child, folder / "sshd.pid", port, deadline):
            running = Running(child.pid, started_at(child.pid) or 0, port)
            _replace(folder / "sshd.json", json.dumps(asdict(running)))
            return running
        taken = child.poll() is not None and not _is_free(port)  # somebody was faster: try another port
        child.kill()
        child.wait()
        if not taken or time.monotonic() > deadline:
            raise LabError(
                f"sshd does not start on {ADDRESS}:{port}: {_last_words(folder)}", fix=f"see {folder}/sshd.log"
            )


def _write_files(folder: Path, alias: str, port: int, extra: tuple[str, ...]) -> None:
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    shutil.copyfile(folder / "client_key.pub", folder / "authorized_keys")
    _replace(folder / "known_hosts", f"[{ADDRESS}]:{port} {host_key}\n")
    _replace(folder / "sshd_config", "\n".join([*extra, *server_config(folder, port)]) + "\n")
    _replace(folder / "ssh_config", "\n".join(client_config(folder, alias, port)) + "\n")


def server_config(folder: Path, port: int) -> list[str]:
    """Lines of sshd_config. The first mention of a keyword wins."""
    return [
        f"ListenAddress {ADDRESS}",
        f"Port {port}",
        f'HostKey "{folder}/host_key"',
        f'PidFile "{folder}/sshd.pid"',
        f'AuthorizedKeysFile "{folder}/authorized_keys"',
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "AllowTcpForwarding yes",
        "AllowAgentForwarding no",
        "X11Forwarding no",
        "PrintMotd no",
        "UseDNS no",
        "LoginGraceTime 30",
        "MaxStartups 200",
        "MaxSessions 200",
        "Subsystem sftp internal-sftp",
        # bash reads ~/.bashrc under sshd unless it is a shell in a shell: what is in there (an environment manager that
        # waits a minute for a lock which a killed session left) is not the practice host's
        "SetEnv SHLVL=1",
    ]


def client_config(folder: Path, alias: str, port: int) -> list[str]:
    """Lines of an OpenSSH client file that reaches the server as ``alias``."""
    return [
        f"Host {alias}",
        f"  HostName {ADDRESS}",
        f"  Port {port}",
        f"  User {pwd.getpwuid(os.getuid()).pw_name}",
        f'  IdentityFile "{folder}/client_key"',
        "  IdentitiesOnly yes",
        f'  UserKnownHostsFile "{folder}/known_hosts"',
        "  GlobalKnownHostsFile /dev/null",
        "  StrictHostKeyChecking yes",
    ]


def _spawn(program: str, folder: Path) -> subprocess.Popen[bytes]:
    (folder / "sshd.pid").unlink(missing_ok=True)
    if os.geteuid() == 0:  # the privilege separation folder, which a package's unit file makes at boot
        Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
    with (folder / "sshd.log").open("ab") as log:
        return subprocess.Popen(
            [program, "-D", "-e", "-f", str(folder / "sshd_config"), *_newer(program, folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


def _newer(program: str, folder: Path) -> list[str]:
    """Options that only newer servers know: 9.8 and later shut out an address after failed logins."""
    option = ["-o", "PerSourcePenalties=no"]
    config = ["-t", "-f", str(folder / "sshd_config")]
    checked = subprocess.run([program, *config, *option], check=False, capture_output=True, timeout=20)
    return option if checked.returncode == 0 else []


def _answers(child: subprocess.Popen[bytes], pid_file: Path, port: int, deadline: float) -> bool:
    """Whether ``child`` came up: sshd writes its pid file once it listens, then greets."""
    while time.monotonic() < deadline and child.poll() is None:
        if _pid_in(pid_file) == child.pid:
            with contextlib.suppress(OSError), socket.create_connection((ADDRESS, port), timeout=5) as greeting:
                return greeting.recv(4) == b"SSH-"
        time.sleep(0.02)
    return False


def _pid_in(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _key(path: Path) -> None:
    if path.exists() and path.with_suffix(".pub").exists():
        return
    path.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "hsops-lab", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "sshd.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def _last_port(folder: Path) -> int | None:
    """The port of the last start: clients may still hold an ssh_config or inventory with it."""
    try:
        words = (folder / "ssh_config").read_text().split()
        return int(words[words.index("Port") + 1])
    except (OSError, ValueError):
        return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port


def _last_words(folder: Path) -> str:
    lines = (folder / "sshd.log").read_text(errors="replace").splitlines()
    return "; ".join(lines[-3:]) or "it said nothing"
