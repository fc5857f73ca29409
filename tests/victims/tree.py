"""A tree of processes that behaves as it is told, for tests of supervision: ``tree.py WORD...``.

Words, in order: ``rank=N`` a child titled as SGLang's scheduler N; ``gone=N`` a scheduler
that has ended with N before anybody saw its title; ``greedy=CGROUP`` a scheduler 1 in there that wants ever more
memory; ``stubborn`` this process ignores SIGTERM;
``shared`` a segment of shared memory and a child that holds it too; ``semaphore`` one of multiprocessing; a number: it
listens on that port; ``cuda=FILE`` maps a file, as a program does with CUDA's library; ``orphan`` a double-forked
grandchild in a session of its own that ignores SIGTERM; ``say=TEXT`` a line of the log; ``bytes`` bytes that are not
UTF-8; ``sleep`` until killed; ``exit=N``; ``once=FILE`` goes on only the first time, else it ends with 3.
"""

import mmap
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory


def main(words: list[str]) -> int:
    for word in words:
        name, _, value = word.partition("=")
        if name == "exit":
            return int(value)
        listen(name) if name.isdigit() else WORDS[name](value)
    return 0


def rank(number: str) -> None:
    """A real process that only carries the title; sleep reads argv[1]."""
    children.append(subprocess.Popen([f"sglang::scheduler_TP{number}", "600"], executable="/bin/sleep"))


def gone(code: str) -> None:
    """A zombie keeps its command's name, cut off at 15 letters: no number."""
    pid = os.fork()
    if pid == 0:
        with open("/proc/self/comm", "w", encoding="ascii") as file:
            file.write("sglang::scheduler_TP1"[:15])
        os._exit(int(code))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def greedy(cgroup: str) -> None:
    """Once somebody could have read its title."""
    code = "import os, sys, time; time.sleep(1); open(sys.argv[1], 'w').write(str(os.getpid())); held = []\n"
    code += "while True: held.append(b'x' * (1 << 20))"
    words = ["sglang::scheduler_TP1", "-c", code, f"{cgroup}/cgroup.procs"]
    # a Python whose first word is no path looks for its library in the folders above the current one
    home = {**os.environ, "PYTHONHOME": sys.base_prefix}
    children.append(subprocess.Popen(words, executable=sys.executable, env=home))


def orphan(_: str) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(f"orphan {os.getpid()}", flush=True)
        time.sleep(600)
        os._exit(0)
    os.wait()


def shared(_: str) -> None:
    """A segment of /dev/shm that only multiprocessing's resource tracker will unlink."""
    segment = SharedMemory(create=True, size=4096)
    segments.append(segment)
    if os.fork() == 0:  # as SGLang's ranks: another holder of the tracker's pipe, with a higher pid than the tracker
        sleep("")
    print(f"segment {segment.name}", flush=True)


def semaphore(_: str) -> None:
    lock = multiprocessing.get_context("spawn").Lock()
    locks.append(lock)
    print(f"segment /sem.{lock._semlock.name.lstrip('/')}", flush=True)


def listen(port: str) -> None:
    sockets.append(socket.create_server(("127.0.0.1", int(port))))


def once(path: str) -> None:
    try:
        open(path, "x").close()
    except FileExistsError:
        sys.exit(3)


def cuda(path: str) -> None:
    with open(path, "rb") as file:
        maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def sleep(_: str) -> None:
    while True:
        time.sleep(600)


segments: list[SharedMemory] = []
locks: list[object] = []
sockets: list[socket.socket] = []
maps: list[mmap.mmap] = []
children: list[subprocess.Popen[bytes]] = []
WORDS = {
    "rank": rank,
    "gone": gone,
    "greedy": greedy,
    "orphan": orphan,
    "shared": shared,
    "cuda": cuda,
    "once": once,
    "semaphore": semaphore,
    "sleep": sleep,
    "stubborn": lambda _: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "say": lambda text: print(text, flush=True),
    "bytes": lambda _: os.write(1, bytes(range(256)) * 300 + b"\n"),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
