"""A container for tests of exec prefixes: a root, processes and a network of its own, and no daemon to ask for it.

What is in there: this machine's programs, this checkout, the test's packages, and ``/ct`` with a Python that has a
small SGLang; outside there is no ``/ct``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.hosts import wait_gone
from tests.practice_host import practice_host

REPO = Path(__file__).parents[1]
SITE = sysconfig.get_path("purelib")
_LO_UP = "import fcntl,socket,struct;fcntl.ioctl(socket.socket(),0x8914,struct.pack('16sh14s',b'lo',1,b''))"
_LAUNCH_SERVER = """\
import runpy, sys
sys.argv = ["keyed.py", sys.argv[sys.argv.index("--port") + 1], *sys.argv[1:]]
runpy.run_path("REPO/tests/victims/keyed.py", run_name="__main__")
"""
# $1 an empty folder, $2 what becomes /ct, $3 this Python, then folders that are bound as they are
_INSIDE = """\
set -e
root=$1 ct=$2 python=$3
shift 3
mount --make-rprivate /
mount -t tmpfs tmpfs "$root"
bind() { mkdir -p "$root$2"; mount --rbind "$1" "$root$2"; }
for folder in /usr /etc /dev "$@"; do bind "$folder" "$folder"; done
for name in bin sbin lib lib64; do
  if [ -L "/$name" ]; then ln -s "$(readlink "/$name")" "$root/$name"; else bind "/$name" "/$name"; fi
done
bind "$ct" /ct
mkdir -p "$root/proc" "$root/tmp" "$root/root"
mount -t proc proc "$root/proc"
"$python" -c "$LO_UP"
cd "$root"
echo ready
exec chroot "$root" env --ignore-signal=CHLD sleep infinity  # as an init does: what ends leaves no entry
"""


@dataclass(frozen=True)
class Container:
    """A running one.

    Args:
        via: the exec prefix that leads into it.
        ct: where its ``/ct`` lies outside.
        pid: its first process, as seen outside.
    """

    via: tuple[str, ...]
    ct: Path
    pid: int

    def pids(self) -> list[int]:
        """Every process in it, but for the first; as seen outside."""
        return [pid for pid in psutil.pids() if pid != self.pid and _namespace(pid) == _namespace(self.pid)]


@contextmanager
def container(folder: Path) -> Iterator[Container]:
    """One that runs while the context is open; nothing of it is left."""
    host = practice_host(folder / "ct")
    (host.site / "test.pth").write_text(f"{SITE}\n{REPO}\n")
    (host.site / "sglang/launch_server.py").write_text(_LAUNCH_SERVER.replace("REPO", str(REPO)))
    (folder / "root").mkdir()
    words = (folder / "root", folder / "ct", sys.executable, sys.base_prefix, SITE, REPO)
    holder = subprocess.Popen(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", _INSIDE, "sh", *map(str, words)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "LO_UP": _LO_UP},
    )  # fmt: skip
    try:
        assert holder.stdout and holder.stdout.readline() == "ready\n"
        (first,) = psutil.Process(holder.pid).children()
        via = ("nsenter", "--target", str(first.pid), "--mount", "--net", "--pid", "--root", "--wd")
        yield Container(via, folder / "ct", first.pid)
    finally:
        holder.kill()
        holder.wait(10)
        assert wait_gone(first.pid)


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:  # it has ended
        return ""
