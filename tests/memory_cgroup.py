"""A control group with little memory, in which the kernel's OOM killer ends whoever wants more."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NUMBERS = itertools.count()
_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_cgroup(limit: int = 48 << 20) -> Iterator[Path]:
    """Its folder, for ``cgroup.procs``; ``limit``: bytes that its processes may have. Skips where none can be made."""
    folder = _made(limit)
    if folder is None:
        pytest.skip("no memory cgroup can be made here: only root can, and not in every container")
    try:
        yield folder
    finally:
        _removed(folder)


def _made(limit: int) -> Path | None:
    for home, limit_file in _places():
        folder = home / f"hsops-test-{os.getpid()}-{next(_NUMBERS)}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit_file).write_text(str(limit))
            return folder
        except OSError:
            folder.rmdir()
    return None


def _places() -> Iterator[tuple[Path, str]]:
    """Where one may be made, by either version of control groups: below our own, or beside it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            own, limit_file = _ROOT / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        elif not controllers:
            own, limit_file = _ROOT / path.lstrip("/"), "memory.max"
        else:
            continue
        yield from ((home, limit_file) for home in (own, own.parent))


def _removed(folder: Path) -> None:
    """Once its processes are gone: a zombie still counts."""
    until = time.monotonic() + 30
    while True:
        try:
            return folder.rmdir()
        except OSError:
            assert time.monotonic() < until, folder
            time.sleep(0.05)
