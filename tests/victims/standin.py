"""What SGLang's server leaves behind if nobody cares: ``standin.py PORT RANKS``, and ``standin.py rank N SEGMENT``.

It and each rank listen on a port and hold a segment of shared memory that only multiprocessing's resource tracker
unlinks, and say so; rank 0 has a child in a session of its own. ``ready`` is the last line. Nobody tidies up.
"""

import mmap
import os
import socket
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory


def main(port: str, ranks: str) -> None:
    server = socket.create_server(("127.0.0.1", int(port)))
    segments = [SharedMemory(create=True, size=1 << 16) for _ in range(int(ranks) + 1)]
    say("server", server, segments[-1].name)
    for n in range(int(ranks)):
        words = [f"sglang::scheduler_TP{n}", __file__, "rank", str(n), segments[n].name]
        tracker = resource_tracker._resource_tracker.getfd()  # multiprocessing's own children hold it too
        # a Python whose first word is no path looks for its library in the folders above the current one
        home = {**os.environ, "PYTHONHOME": sys.base_prefix}
        subprocess.Popen(words, executable=sys.executable, pass_fds=(tracker,), env=home)
    log = os.readlink("/proc/self/fd/1")
    while sum(line.startswith("TP") for line in open(log)) < int(ranks):  # noqa: SIM115
        time.sleep(0.01)
    os.write(1, b"ready\n")
    time.sleep(600)


def rank(n: str, segment: str) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with open(f"/dev/shm/{segment}", "r+b") as file:
        held = mmap.mmap(file.fileno(), 0)
    if n == "0":
        subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    say(f"TP{n}", server, segment)
    time.sleep(600)
    held.close()


def say(name: str, server: socket.socket, segment: str) -> None:
    """A whole line at once: print writes a line and its end apart, and others write between."""
    os.write(1, f"{name} port {server.getsockname()[1]} segment {segment.lstrip('/')}\n".encode())


if __name__ == "__main__":
    rank(*sys.argv[2:]) if sys.argv[1] == "rank" else main(*sys.argv[1:])
