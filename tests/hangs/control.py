"""Makes a running server hang on order, and go on again: many hangs of one start.

``install`` puts this file and a ``.pth`` line into a lab. In a server that is launched with HSOPS_HANGS=<folder>, each
process that passes a place looks for a file of that place there: lines of ``who deed``. Who is named does the deed, in
its main thread and where SGLang was about to go on, until the file is gone. ``<who>.in`` is there meanwhile.
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType
    from typing import Any

NAME, VARIABLE = "hsops_test_hangs", "HSOPS_HANGS"
SHIMS = "hsops_lab_shims"
EMBEDDING = "sglang.srt.layers.vocab_parallel_embedding"
SCHEDULER = "sglang.srt.managers.scheduler"
TOKENIZER = "sglang.srt.managers.tokenizer_manager"
POLL_S = 0.25  # few looks, so that a rank that spins hardly calls the kernel
TAG = 77  # of a message that nobody but the order to go on sends


class OrderedError(RuntimeError):
    """Raised by a rank that was told to."""


def install(site: Path) -> None:
    """Into the lab's site-packages. A lab's ``--purge`` takes it away again."""
    import shutil

    shutil.copy(__file__, site / f"{NAME}.py")
    (site / f"zz_{NAME}.pth").write_text(f"import {NAME}; {NAME}.start()\n")  # after the lab's own


def start() -> None:
    """In every interpreter of the lab."""
    if not os.environ.get(VARIABLE):
        return
    import importlib

    hooks = importlib.import_module(f"{SHIMS}.hooks")
    faults = importlib.import_module(f"{SHIMS}.faults")
    for place in ("distributed", "weights", "kv-cache", "http"):
        module, put = faults.PLACES[place]
        hooks.after_import(module, put(lambda place=place: visit(place)))
    hooks.after_import(EMBEDDING, before("VocabParallelEmbedding", "forward", "forward"))
    hooks.after_import(SCHEDULER, before("Scheduler", "process_input_requests", "loop"))
    hooks.after_import(TOKENIZER, before("TokenizerManager", "generate_request", "request"))
    hooks.after_import(EMBEDDING, lambda _module: threading.Thread(target=answer, daemon=True).start())


def before(cls: str, method: str, place: str) -> Callable[[ModuleType], None]:
    """``visit(place)`` before each call of a method."""

    def patch(module: ModuleType) -> None:
        owner = getattr(module, cls)
        original = getattr(owner, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            visit(place)
            return original(*args, **kwargs)

        setattr(owner, method, wrapped)

    return patch


def folder() -> str:
    """Where orders lie."""
    return os.environ[VARIABLE]


def visit(place: str) -> None:
    """Do what is ordered of this process here, if anything."""
    order = f"{folder()}/{place}"
    try:
        with open(order, encoding="utf-8") as file:
            orders = dict(line.split() for line in file)
    except FileNotFoundError:
        return
    me = whoami()
    deed = orders.get(me)
    if deed is None:
        return
    inside = f"{folder()}/{me}.in"
    with open(inside, "w", encoding="utf-8") as file:
        file.write(place)
    try:
        DEEDS[deed](lambda: not os.path.exists(order))
    finally:
        os.unlink(inside)


def whoami() -> str:
    """``TP1``, or ``launcher``."""
    with open("/proc/self/cmdline", encoding="utf-8", errors="replace") as file:
        title = file.read()
    found = re.search(r"sglang::scheduler(?:_TP(\d+))?", title)
    return f"TP{found.group(1) or 0}" if found else "launcher"


def spin(over: Callable[[], bool]) -> None:
    """Burn a core, and now and then write a byte to an eventfd that nobody reads."""
    nobody = os.eventfd(0, os.EFD_NONBLOCK)
    while not over():
        until = time.monotonic() + POLL_S  # the clock is read without a system call
        while time.monotonic() < until:
            pass
        os.eventfd_write(nobody, 1)
    os.close(nobody)


def lock(over: Callable[[], bool]) -> None:
    """Wait for a lock that somebody else holds."""
    held = threading.Lock()
    held.acquire()
    later(over, held.release)
    held.acquire()


def pipe(over: Callable[[], bool]) -> None:
    """Write into a pipe that nobody reads."""
    read, write = os.pipe()
    later(over, lambda: [os.read(read, 1 << 16) for _ in range(32)])
    data = bytes(1 << 20)
    while data:  # a call that is interrupted has written less
        data = data[os.write(write, data) :]


def fifo(over: Callable[[], bool]) -> None:
    """Read a file that gives nothing: a FIFO where a file was expected."""
    path = f"{folder()}/fifo.{os.getpid()}"
    os.mkfifo(path)
    both = os.open(path, os.O_RDWR)
    later(over, lambda: os.write(both, b"x"))
    with open(path, "rb", buffering=0) as file:
        file.read(1)
    os.unlink(path)


def receive(over: Callable[[], bool]) -> None:
    """Wait in an operation that the peer never joins: ranks that issued different collectives."""
    import torch
    import torch.distributed as ranks

    me, size = ranks.get_rank(), ranks.get_world_size()
    want = f"{folder()}/want.{(me - 1) % size}.{me}"
    later(over, lambda: os.close(os.open(want, os.O_CREAT | os.O_WRONLY)))
    ranks.recv(torch.zeros(1), src=(me - 1) % size, tag=TAG)


def answer() -> None:
    """In a thread of every rank: send what a peer that was released still waits for."""
    import torch
    import torch.distributed as ranks

    while not ranks.is_initialized():
        time.sleep(POLL_S)
    me, size = ranks.get_rank(), ranks.get_world_size()
    want = f"{folder()}/want.{me}.{(me + 1) % size}"
    while True:
        time.sleep(POLL_S)
        if os.path.exists(want):
            os.unlink(want)
            ranks.send(torch.zeros(1), dst=(me + 1) % size, tag=TAG)


def trickle(over: Callable[[], bool]) -> None:
    """Read a file from the disk over and over, a piece at a time: slow, not stuck."""
    with open(__file__, "rb") as own:
        content = own.read() * 64
    path = f"{folder()}/slow.{os.getpid()}"
    with open(path, "wb", buffering=0) as file:
        file.write(content)
    while not over():
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 16) and not over():
                time.sleep(0.02)
    os.unlink(path)


def fail(_over: Callable[[], bool]) -> None:
    """An exception of this one rank."""
    raise OrderedError("ordered by the test")


def later(over: Callable[[], bool], release: Callable[[], object]) -> None:
    """``release()`` in a thread when the order is over."""

    def wait() -> None:
        while not over():
            time.sleep(POLL_S)
        release()

    threading.Thread(target=wait, daemon=True).start()


DEEDS: dict[str, Callable[[Callable[[], bool]], None]] = {
    "spin": spin,
    "lock": lock,
    "pipe": pipe,
    "fifo": fifo,
    "receive": receive,
    "trickle": trickle,
    "raise": fail,
}
