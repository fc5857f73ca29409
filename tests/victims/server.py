"""A server that behaves as it is told, for tests of diagnosis: ``server.py LOG PORT HEALTH RANK...``.

It prints the lines of the file LOG, makes its own log look as old as they are, starts one child a RANK titled as
SGLang's scheduler, says ``up`` to standard error, and answers PORT: /health with the status HEALTH (0: no port at all).
Ranks: ``spin`` (busy, now and then a write to an eventfd), ``poll`` (busy, asks the kernel all the time), ``sleep``,
``read=FILE`` (reads slowly past the page cache), ``stop`` (SIGSTOP), ``kill`` (SIGKILL).
"""

import http.server
import os
import select
import signal
import subprocess
import sys
import time

OLD_S = 600


def main(words: list[str]) -> None:
    log, port, health, *ranks = words
    with open(log, encoding="utf-8") as file:
        sys.stdout.write(file.read())
    sys.stdout.flush()
    for rank, word in enumerate(ranks):
        title = f"sglang::scheduler_TP{rank}"
        # a Python whose first word is no path looks for its library in the folders above the current one
        home = {**os.environ, "PYTHONHOME": sys.base_prefix}
        subprocess.Popen([title, __file__, word], executable=sys.executable, stdin=subprocess.DEVNULL, env=home)
    then = time.time() - OLD_S
    os.utime(os.readlink("/proc/self/fd/1"), (then, then))
    if int(health):
        Answer.health = int(health)
        http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Answer).serve_forever()
    time.sleep(600)


class Answer(http.server.BaseHTTPRequestHandler):
    health = 200

    def do_GET(self) -> None:
        self.send_response(self.health if self.path == "/health" else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """The log stays as old as it is."""


def spin(_: str) -> None:
    nobody = os.eventfd(0, os.EFD_NONBLOCK)
    while True:
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            pass
        os.eventfd_write(nobody, 1)


def poll(_: str) -> None:
    nothing, _w = os.pipe()
    waiting = select.poll()
    waiting.register(nothing, select.POLLIN)
    while True:
        waiting.poll(0)


def read(name: str) -> None:
    while True:
        with open(name, "rb", buffering=0) as file:
            while file.read(1 << 16):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                time.sleep(0.02)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        name, _, value = sys.argv[1].partition("=")
        with open("/proc/self/comm", "w") as file:  # as setproctitle does: it is what remains of a dead one
            file.write("sglang::schedul")
        if name in ("stop", "kill"):
            os.kill(os.getpid(), signal.SIGSTOP if name == "stop" else signal.SIGKILL)
        {"spin": spin, "poll": poll, "read": read}.get(name, lambda _: time.sleep(600))(value)
    main(sys.argv[1:])
