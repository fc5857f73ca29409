"""A private Slurm on this machine: one controller, some nodes. Root gives each node processes and a network of its own.

Then a login node is what it is on a real cluster: it sees the files of a job, and neither its processes nor its ports.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hsops.remote import runs
from hsops.remote.agent import Agent
from hsops.remote.connect import connect
from tests.cable import why_not
from tests.hosts import Server, wait_gone

_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_ENV = {**os.environ, "PATH": _PATH}
_NUMBERS = itertools.count()
CLIENTS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "srun", "sacct")
GPUS = ("/dev/null", "/dev/zero")  # of each node: Slurm deals them out, whatever they are
_UP_S = 30.0

_CONF = """\
ClusterName=hsops
SlurmctldHost=localhost({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
MessageTimeout=10
KillWait=5
MinJobAge=300
AccountingStorageType=accounting_storage/none
GresTypes=gpu
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=short Nodes=ALL MaxTime=5 State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""


@dataclass
class Cluster:
    """One that is up.

    Args:
        folder: its configuration, logs and sockets.
        nodes: their names.
        apart: each node has processes and a network of its own.
    """

    folder: Path
    nodes: tuple[str, ...]
    apart: bool
    _port: int = 0
    _daemons: dict[str, int] = field(default_factory=dict)
    _devices: list[str] = field(default_factory=list)

    @property
    def bin(self) -> Path:
        """Slurm's commands, which know of this cluster."""
        return self.folder / "bin"

    def ask(self, *argv: str, seconds: float = 20.0) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            [str(self.bin / argv[0]), *argv[1:]], capture_output=True, text=True, timeout=seconds, check=False, env=_ENV
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def freeze(self) -> None:
        """The controller gives no answer any more, and refuses none: its commands wait."""
        os.kill(self._daemons["slurmctld"], signal.SIGSTOP)

    def thaw(self) -> None:
        """As before."""
        os.kill(self._daemons["slurmctld"], signal.SIGCONT)

    def kill_controller(self) -> None:
        """It is gone, and jobs go on."""
        self._end("slurmctld")

    def start_controller(self) -> None:
        """Start it, with what it remembers."""
        self._start("slurmctld", ("slurmctld", "-D", "-f", str(self.folder / "slurm.conf")))

    def wait_up(self) -> None:
        """Until every node can be had."""
        until, said = time.monotonic() + _UP_S, ""
        while time.monotonic() < until:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                said = self.ask("sinfo", "-h", "-N", "-p", "gpu", "-o", "%T", seconds=3)
                if said.split() == ["idle"] * len(self.nodes):
                    return
            time.sleep(0.1)
        raise AssertionError(f"Slurm did not come up: {said}; {self._logs()}")

    # -- up and down

    def up(self) -> None:
        """Start it all."""
        self.folder.mkdir(parents=True)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self._port = _free_ports(1 + len(self.nodes))
        address = self._wires() if self.apart else dict.fromkeys(("", *self.nodes), "127.0.0.1")
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={name} NodeAddr={address[name]} Port={self._port + 1 + n} CPUs=2 "
            f"RealMemory=16000 Gres=gpu:{len(GPUS)} State=UNKNOWN"
            for n, name in enumerate(self.nodes)
        )
        import getpass

        said = {"address": address[""], "port": self._port, "user": getpass.getuser(), "folder": self.folder}
        (self.folder / "slurm.conf").write_text(_CONF.format(**said, nodes=nodes))
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in GPUS))
        self.bin.mkdir()
        for name in CLIENTS:
            path = self.bin / name
            conf, program = self.folder / "slurm.conf", shutil.which(name, path=_PATH)
            path.write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec {program} "$@"\n')
            path.chmod(0o755)
        socket_, log = f"--socket={self.folder}/munge.sock", f"--log-file={self.folder}/munged.log"
        files = (f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed", log)
        self._start("munged", ("munged", "--foreground", "--force", f"--key-file={key}", socket_, *files))
        _wait((self.folder / "munge.sock").exists, "munged")
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        self.wait_up()

    def start_node(self, name: str) -> None:
        """Start its slurmd."""
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        slurmd = ("slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf"))
        self._start(name, (*self._inside(name), *slurmd))

    def kill_node(self, name: str) -> None:
        """It fails: its slurmd and every process of its jobs are gone at once. Only where nodes are apart."""
        assert self.apart
        for proc in _session(self._daemons[name]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(proc, signal.SIGKILL)
        self._end(name)

    def down(self) -> None:
        """End it all; nothing is left."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.ask("scancel", "--quiet", "--user", str(os.geteuid()), seconds=5)
            _wait(lambda: not self.ask("squeue", "-h"), "the last job", 20)
        for name in (*self.nodes, "slurmctld", "munged"):
            self._end(name)
        for holder in [one for one in self._daemons if one.startswith("net-")]:
            self._end(holder)
        for device in self._devices:
            subprocess.run(["ip", "link", "delete", device], check=False, capture_output=True, timeout=20, env=_ENV)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _inside(self, name: str) -> tuple[str, ...]:
        if not self.apart:
            return ()
        enter = ("nsenter", "--target", str(self._daemons[f"net-{name}"]), "--net", "--uts", "--")
        apart = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        return (*enter, *apart, "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm; "$@" & wait', "sh")

    def _wires(self) -> dict[str, str]:
        """A network for each node, with a wire to here; addresses by node, and ours for "" (RFC 2544's)."""
        number = (os.getpid() * 8 + next(_NUMBERS)) % 250
        found = {"": f"198.19.{number}.1"}
        for n, name in enumerate(self.nodes):
            base, near, far = 4 * n, f"sl{number}n{n}", f"sl{number}f{n}"
            here, there = f"198.19.{number}.{base + 1}", f"198.19.{number}.{base + 2}"
            argv = ("unshare", "--net", "--uts", "sh", "-c", f"hostname {name}; echo ready; exec sleep infinity")
            self._start(f"net-{name}", argv, ready=b"ready\n")
            pid = str(self._daemons[f"net-{name}"])
            self._devices.append(near)
            _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", pid)
            _ip("address", "add", f"{here}/30", "dev", near)
            _ip("link", "set", near, "up")
            inside = ("nsenter", "--target", pid, "--net", "--")
            for words in (("address", "add", f"{there}/30", "dev", far), ("link", "set", far, "up"),
                          ("link", "set", "lo", "up"), ("route", "add", "default", "via", here)):  # fmt: skip
                _ip(*words, inside=inside)
            found[name] = there
        return found

    def _start(self, name: str, argv: tuple[str, ...], ready: bytes = b"") -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            proc = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if ready else out, stderr=out, env=_ENV,
                start_new_session=True,
            )  # fmt: skip
        self._daemons[name] = proc.pid
        if ready:
            assert proc.stdout and proc.stdout.readline() == ready
            proc.stdout.close()

    def _end(self, name: str) -> None:
        pid = self._daemons.pop(name, 0)
        if not pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGTERM)
        if not wait_gone(pid, 0.5 if self.apart and name in self.nodes else 10.0):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            assert wait_gone(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    def _logs(self) -> str:
        names = ("slurmctld.log", "munged.out", "slurmctld.out", *(f"slurmd-{name}.log" for name in self.nodes))
        paths = [self.folder / name for name in names]
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in paths if path.exists())


def missing() -> str:
    """The programs that are not here; "" when all are. scripts/system-packages installs them."""
    return ", ".join(name for name in ("slurmctld", "slurmd", "munged", "sbatch") if not shutil.which(name, path=_PATH))


@contextmanager
def cluster(folder: Path, nodes: tuple[str, ...] = ("node1", "node2"), apart: bool = True) -> Iterator[Cluster]:
    """A cluster while the context is open; ``apart``: where that can be had, else its nodes are this machine."""
    assert not (lacks := missing()), f"{lacks} not found: scripts/system-packages"
    made = Cluster(folder, nodes, apart=apart and not why_not())
    try:
        made.up()
        yield made
    finally:
        made.down()


@contextmanager
def login_node(server: Server, state: Path) -> Iterator[Agent]:
    """The agent there, over SSH; whatever it has started is over afterwards."""
    host = connect(server.spec)
    agent = Agent(host, python=server.spec.python, state_dir=str(state))
    yield agent
    for run in runs.list_runs(agent):
        if run.job and not run.job.over:
            runs.stop_run(agent, run.id, grace=0.0)
    host.close()


def _free_ports(count: int) -> int:
    """The first of so many neighbours that nobody listens on."""
    for first in range(21000 + os.getpid() % 900 * 10, 31900, 10):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("", port))
            return first
    raise AssertionError("no ports")


def _session(pid: int) -> list[int]:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def _wait(true, what: str, patience: float = 10.0) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + patience
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def _ip(*words: str, inside: tuple[str, ...] = ()) -> None:
    subprocess.run([*inside, "ip", *words], check=True, capture_output=True, timeout=20, env=_ENV)
