"""Processes as /proc shows them. A process is its pid *and* its start time: the pid alone may be another's by now."""

import contextlib
import functools
import os
import re
import signal
import time
from typing import Any, NamedTuple

_LOG = re.compile(r"/runs/(\d{4}-\d{6}-[0-9a-f]{4})/server\.log$")
MARK = "HSOPS_RUN"  # every process of a run carries it in its environment
_RUN_ID = re.compile(r"^(\d{4}-\d{6}-[0-9a-f]{4})(?:/\d+)?$")
_SECRET = re.compile(r"(?i)(--[\w-]*(?:api-key|token|password|secret)[= ])\S+")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TAGS = re.compile(r"(DP|PP|TP)(\d+)")


class Proc(NamedTuple):  # not a dataclass: those take a sixth of an agent's start to load
    """One process. Times in clock ticks, ``start`` since boot; ``rss`` in bytes; ``status`` is a zombie's for wait."""

    pid: int
    ppid: int
    start: int
    state: str
    comm: str
    session: int
    minflt: int
    majflt: int
    cpu: int
    rss: int
    status: int

    @property
    def zombie(self) -> bool:
        """It has ended and nobody has asked how."""
        return self.state in "ZX"


def look(pid: int) -> "Proc | None":
    """The process, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # a name may hold blanks and brackets
    f = rest.split()
    if len(f) < 22:
        return None
    return Proc(
        pid=pid,
        ppid=int(f[1]),
        start=int(f[19]),
        state=f[0],
        comm=name,
        session=int(f[3]),
        minflt=int(f[7]),
        majflt=int(f[9]),
        cpu=int(f[11]) + int(f[12]),
        rss=int(f[21]) * _PAGE,
        status=int(f[49]) if len(f) > 49 else 0,
    )


def is_alive(pid: int, start: int) -> bool:
    """This very process still runs."""
    proc = look(pid)
    return proc is not None and proc.start == start and not proc.zombie


def census() -> "dict[int, Proc]":
    """Every process there is."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc}


def children(pid: int) -> "list[int]":
    """Direct children, without looking at every process; needs CONFIG_PROC_CHILDREN (all distributions have it)."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(word) for t in threads for word in _read(f"/proc/{pid}/task/{t}/children").split()]


def tree(pid: int) -> "list[Proc]":
    """All descendants of ``pid``, zombies too, parents first.

    A child that was reaped since its pid was read may be anybody by now: its parent must be one of these.
    """
    found: dict[int, Proc] = {}
    ahead = children(pid)
    while ahead:
        proc = look(ahead.pop(0))
        if proc and proc.pid not in found and (proc.ppid == pid or proc.ppid in found):
            found[proc.pid] = proc
            ahead += children(proc.pid)
    return list(found.values())


class Snapshot:
    """Every process at one moment, and the run that each shows itself to belong to."""

    def __init__(self) -> None:
        self.everyone = census()
        self._shown: dict[str, set[int]] = {}  # run id or path of a log -> pids
        for pid in self.everyone:
            for sign in _signs(pid):
                self._shown.setdefault(sign, set()).add(pid)

    def shows(self, run: str, log: str) -> "set[int]":
        """Processes with the run's mark in their environment, or its log as standard output or error.

        setproctitle writes over the environment, so SGLang's ranks do not show the mark any more.
        """
        return self._shown.get(run, set()) | self._shown.get(log, set())

    def runs(self) -> "dict[int, str]":
        """pid -> the run that it shows by its mark or its log, of whatever state folder."""
        found: dict[int, str] = {}
        for sign, pids in self._shown.items():
            if run := _run_in(sign):
                found.update(dict.fromkeys(pids, run))
        return found


def run_of(pid: int) -> str:
    """The run, of whatever state folder, that a process shows to be of by its mark or its log; empty: none."""
    return next(filter(None, map(_run_in, sorted(_signs(pid)))), "")


def _signs(pid: int) -> "set[str]":
    return {*marks(pid), _link(f"/proc/{pid}/fd/1"), _link(f"/proc/{pid}/fd/2")}


def _run_in(sign: str) -> str:
    match = _LOG.search(sign) or _RUN_ID.match(sign)
    return match.group(1) if match else ""


def below(roots: "list[int]", everyone: "dict[int, Proc]") -> "set[int]":
    """All descendants of ``roots``, without them."""
    if not roots:
        return set()
    children: dict[int, list[int]] = {}
    for proc in everyone.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    found: set[int] = set()
    ahead = list(roots)
    while ahead:
        for child in children.get(ahead.pop(), ()):
            if child not in found:
                found.add(child)
                ahead.append(child)
    return found - set(roots)


def title(pid: int) -> str:
    """The command line as one text: what ``ps`` shows, set by setproctitle in SGLang's processes. Without secrets."""
    text = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return _SECRET.sub(r"\1***", text)


def role(text: str) -> str:
    """What a process title says it is: ``TP3``, ``DP1.TP0``, ``detokenizer``, or "" for anything else.

    At TP 1 the title is ``sglang::scheduler``; DP and PP tags are only there when they are in use.
    """
    if not text.startswith("sglang::"):
        return ""
    kind, _, tags = text[len("sglang::") :].partition("_")
    if kind == "scheduler":
        return ".".join(f"{name}{int(n)}" for name, n in _TAGS.findall(tags)) or "TP0"
    return text[len("sglang::") :].split(" ", maxsplit=1)[0]


def marks(pid: int) -> "list[str]":
    """The run whose mark is in the environment that the process was started with, if any."""
    return [run for run in [environment(pid).get(MARK)] if run is not None]


def environment(pid: int) -> "dict[str, str]":
    """What the process was started with; empty when it may not be looked at, or wrote over it (setproctitle)."""
    words = _read(f"/proc/{pid}/environ").decode(errors="replace").split("\0")
    return {name: value for name, found, value in (word.partition("=") for word in words) if found}


def io(pid: int) -> "dict[str, int]":
    """What it has read so far: ``rchar``, ``syscr``, ``read_bytes`` (from storage, also by page faults) and the rest.

    Empty when /proc does not say, as of somebody else's process.
    """
    pairs = (line.split(": ") for line in _read(f"/proc/{pid}/io").decode().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def argv(pid: int) -> "list[str]":
    """Its command line as words."""
    return _read(f"/proc/{pid}/cmdline").decode(errors="replace").rstrip("\0").split("\0")


def send(pid: int, start: int, number: int) -> bool:
    """Signal exactly this process; False when it is gone. A pidfd closes the gap between looking and killing."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError:  # before Linux 5.3, or seccomp: a small gap remains
        fd = -1
    try:
        if not is_alive(pid, start):
            return False
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    finally:
        if fd >= 0:
            os.close(fd)
    return True


@functools.cache
def boot_id() -> str:
    """Changes with every boot; start times of another boot mean nothing."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def exit_of(status: int) -> "dict[str, Any]":
    """A wait status as the ``code`` and ``signal`` of an exit."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = {s.value: s.name for s in signal.Signals}
        return {"code": None, "signal": known.get(number, f"SIG{number}")}
    return {"code": os.WEXITSTATUS(status), "signal": ""}


def listener(port: int, among: "list[int] | None" = None) -> "dict[str, Any] | None":
    """Who listens on a TCP port: ``{"pid", "command"}``, both None when hidden from us; None when nobody does.

    ``among``: only these are looked at; with another listener both are None.
    """
    inodes = {f"socket:[{f[9]}]" for f in _sockets(port, "0A")}
    if not inodes:
        return None
    for pid in among if among is not None else (int(name) for name in os.listdir("/proc") if name.isdigit()):
        if inodes & _links(pid):
            return {"pid": pid, "command": title(pid)[:200]}
    return {"pid": None, "command": None}


def accepted(port: int, peer: int, among: "list[int]", timeout: float) -> bool:
    """One of ``among`` has accepted the connection of the local port ``peer`` to ``port``: not a stranger, or nobody.

    The kernel connects before anybody accepts; until then it tells no inode of the listener's end.
    """
    until = time.monotonic() + timeout
    while True:
        ends = {f[9] for f in _sockets(port, "01") if int(f[2].rpartition(":")[2], 16) == peer} - {"0"}
        if ends or time.monotonic() > until:
            return any(f"socket:[{inode}]" in _links(pid) for inode in ends for pid in among)
        time.sleep(0.01)


def clients(port: int) -> "set[str]":
    """Who is connected to a TCP port, as the kernel writes addresses."""
    return {f[2] for f in _sockets(port, "01")}


def _sockets(port: int, state: str) -> "list[list[str]]":
    """The rows of this port's sockets in a state of the kernel's: 0A listens, 01 is connected."""
    lines = [line for table in ("/proc/net/tcp", "/proc/net/tcp6") for line in _read(table).decode().splitlines()[1:]]
    rows = map(str.split, lines)
    return [f for f in rows if len(f) > 9 and f[3] == state and int(f[1].rpartition(":")[2], 16) == port]


def files(pid: int) -> "set[str]":
    """Paths that it has mapped or open; none when it may not be looked at."""
    return {path for path, _ in _mapped(pid)} | _links(pid)


def inodes(pid: int, below: str) -> "set[tuple[int, int]]":
    """Device and inode of the files that it has mapped or open and whose paths begin with ``below``, or did."""
    found, folder = {file for path, file in _mapped(pid) if path.startswith(below)}, f"/proc/{pid}/fd"
    try:
        fds = os.listdir(folder)
    except OSError:
        return found
    for fd in fds:
        if _link(f"{folder}/{fd}").startswith(below):
            with contextlib.suppress(OSError):  # closed meanwhile
                of = os.stat(f"{folder}/{fd}")
                found.add((of.st_dev, of.st_ino))
    return found


def _mapped(pid: int) -> "list[tuple[str, tuple[int, int]]]":
    """Path, and device and inode, of each mapping of a file."""
    lines = _read(f"/proc/{pid}/maps").decode(errors="replace").splitlines()
    words = [line.split(None, 5) for line in lines]
    files = [word for word in words if len(word) > 5 and word[5].startswith("/")]
    return [(w[5], (os.makedev(*(int(n, 16) for n in w[3].split(":"))), int(w[4]))) for w in files]


def _links(pid: int) -> "set[str]":
    folder = f"/proc/{pid}/fd"
    try:
        return {_link(f"{folder}/{fd}") for fd in os.listdir(folder)}
    except OSError:
        return set()


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
