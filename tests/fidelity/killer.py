"""Ends a thread of a server by its name, as nothing in the server would: to see what the others make of it.

``install`` puts this file and a ``.pth`` line into a lab. A server that is launched with HSOPS_KILL_THREAD=<path>
watches for that file; it holds names of threads, one a line. The process that has them raises SystemExit in each.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

NAME, VARIABLE = "hsops_test_killer", "HSOPS_KILL_THREAD"
POLL_S = 0.02


def install(site: Path) -> None:
    """Into the lab's site-packages. A lab's ``--purge`` takes it away again."""
    import shutil

    shutil.copy(__file__, site / f"{NAME}.py")
    (site / f"{NAME}.pth").write_text(f"import {NAME}; {NAME}.start()\n")


def start() -> None:
    """In every interpreter of the lab."""
    if path := os.environ.get(VARIABLE):
        import threading

        threading.Thread(target=watch, args=(path,), name=NAME, daemon=True).start()


def watch(path: str) -> None:
    """Look for the file as long as the process lives."""
    import threading
    import time

    while True:
        time.sleep(POLL_S)
        try:
            with open(path, encoding="utf-8") as file:
                names = file.read().split()
        except FileNotFoundError:
            continue
        found = [thread for thread in threading.enumerate() if thread.name in names]
        for thread in found:
            end(thread.ident or 0)
        if found:
            os.unlink(path)


def end(ident: int) -> None:
    """The thread raises SystemExit at its next instruction."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))
