"""The folder that all labs of a user share, and how something in it is built once, whole, by one builder."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from hsops.core.events import Emit, Note

VARIABLE = "HSOPS_CACHE_DIR"


def folder() -> Path:
    """``lab`` in the user's cache folder for hsops, or in the one that HSOPS_CACHE_DIR names."""
    chosen = os.environ.get(VARIABLE)
    return (Path(chosen).expanduser().absolute() if chosen else user_cache_path("hsops")) / "lab"


def built(target: Path, build: Callable[[Path], None], emit: Emit) -> Path:
    """``target``, built unless it is there. Another builder of the same target is waited for.

    Args:
        target: exists whole or not at all: it is built under a temporary name and renamed.
        build: makes the folder it is given; whatever it raises leaves no target behind.
        emit: told when somebody else is building.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.with_name(f"{target.name}.lock"), lambda: emit(Note(f"another lab is building {target.name}"))):
        if not target.exists():
            _remove_leftovers(target)
            temporary = target.with_name(f"{target.name}.building-{os.getpid()}")
            try:
                build(temporary)
                temporary.rename(target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return target


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file ``path``; the kernel drops it when the process ends, however it ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(target: Path) -> None:
    for leftover in target.parent.glob(f"{target.name}.building-*"):
        shutil.rmtree(leftover, ignore_errors=True)
