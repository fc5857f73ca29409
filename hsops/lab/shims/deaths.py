"""One rank dies at a line of the log, in a way of your choice: set HSOPS_LAB_DIES for the server.

``HSOPS_LAB_DIES="TP1 raise Load weight begin"``: TP1 raises when it has said that; a line of the main process counts
too. A thread of that rank reads the log, which is its standard output, so SGLang's own code is as published.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .hooks import Patch

VARIABLE = "HSOPS_LAB_DIES"  # the rank; kill, exit, raise or oom; a regular expression
CGROUP = "HSOPS_LAB_CGROUP"  # for oom: a control group with little memory, which the rank joins to ask for more
STAMP = "HSOPS_LAB_DIED"  # a file that gets the time of the death, in seconds since the epoch
SCHEDULER = "sglang.srt.managers.scheduler"  # a rank's process imports it first of all
EXIT_CODE = 3
WORDS = "the planted fault of the lab"
_LOOK_S = 0.01
_AGAIN_S = 3.0  # some of SGLang's imports swallow whatever they raise


def patches(value: str) -> Iterator[tuple[str, Patch]]:
    """(module, what to do after its import) for the value of ``VARIABLE``."""
    if value:
        rank, how, pattern = value.split(" ", 2)
        yield SCHEDULER, lambda _module: _watch_log(WAYS[how], rank, pattern)


def pattern_of(rank: str, pattern: str) -> str:
    """What finds ``pattern`` at the start of a message of ``rank``, or of a process that gives no rank."""
    return rf"(?m)^(?:\[[-0-9 :]{{19}}(?: {rank})?\] )?(?:{pattern})"


def _watch_log(die: Callable[[], None], rank: str, pattern: str) -> None:
    import threading

    threading.Thread(target=_wait_and_die, args=(die, rank, pattern), daemon=True).start()


def _wait_and_die(die: Callable[[], None], rank: str, pattern: str) -> None:
    import re
    import time

    while not _title().startswith(f"sglang::scheduler_{rank}"):
        time.sleep(_LOOK_S)
    wanted, text = re.compile(pattern_of(rank, pattern)), ""
    with open("/proc/self/fd/1", encoding="utf-8", errors="replace") as log:  # noqa: PTH123
        while not wanted.search(text):
            time.sleep(_LOOK_S)
            text += log.read()
    die()


def _title() -> str:
    with open("/proc/self/cmdline", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        return file.read()


def _stamp() -> None:
    import os
    import time

    if path := os.environ.get(STAMP):
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(repr(time.time()))


class PlantedError(RuntimeError):
    """Raised in the main thread of a rank, between two of its own instructions."""

    def __init__(self) -> None:
        _stamp()
        super().__init__(f"{WORDS}\nand a second line of it")


def _kill() -> None:
    import os
    import signal

    _stamp()
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    import os

    _stamp()
    os._exit(EXIT_CODE)


def _raise() -> None:
    import ctypes
    import threading
    import time

    while True:
        main = ctypes.c_ulong(threading.main_thread().ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(PlantedError))
        time.sleep(_AGAIN_S)


def _oom() -> None:
    import os

    with open(f"{os.environ[CGROUP]}/cgroup.procs", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(str(os.getpid()))
    _stamp()  # what it has already does not count there: some 20 ms are left
    held = []
    while True:
        held.append(b"x" * (1 << 20))


WAYS: dict[str, Callable[[], None]] = {"kill": _kill, "exit": _exit, "raise": _raise, "oom": _oom}
