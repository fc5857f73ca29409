"""Growth of the caches that JIT compilers write, without ever waiting for the file system they lie on."""

import getpass
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

_EVERY_S = 5.0
_MOST = 50_000  # entries of one look; a cache of years must not cost the host a core
_PLACES = (  # the variables that move a cache, first one first; what lies below them; where it is without one
    (("FLASHINFER_WORKSPACE_BASE",), ".cache/flashinfer", "~/.cache/flashinfer"),
    (("TRITON_CACHE_DIR",), "", "~/.triton/cache"),
    (("TRITON_HOME",), ".triton/cache", ""),
    (("TORCHINDUCTOR_CACHE_DIR",), "", "{tmp}/torchinductor_{user}"),
    (("SGLANG_DG_CACHE_DIR", "DG_JIT_CACHE_DIR"), "", "~/.cache/deep_gemm"),
    (("TVM_FFI_CACHE_DIR",), "", "~/.cache/tvm-ffi"),
    (("TORCH_EXTENSIONS_DIR",), "", "~/.cache/torch_extensions"),
    (("CUDA_CACHE_PATH",), "", "~/.nv/ComputeCache"),  # the driver's own, for PTX
    (("SGLANG_CACHE_DIR",), "", "~/.cache/sglang"),
)


def roots(env: "Mapping[str, str]") -> "list[str]":
    """The folders of the caches for a server with ``env``, whether they are there or not."""
    home = env.get("HOME") or os.path.expanduser("~")
    try:
        user = env.get("USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        user = str(os.getuid())
    known = {"{tmp}": env.get("TMPDIR") or tempfile.gettempdir(), "{user}": user}
    found = []
    for names, below, default in _PLACES:
        value = next((env[name] for name in names if env.get(name)), "")
        path = os.path.join(value, below) if value else default
        for word, filling in known.items():
            path = path.replace(word, filling)
        if path:
            found.append(os.path.normpath(f"{home}{path[1:]}" if path.startswith("~") else path))
    return found


class Caches:
    """Looks at them in the background every few seconds, tells the last finding. One that hangs is not repeated.

    The caches are shared: another server on the host fills them, too. Growth is ours only where our own processes
    have written as much meanwhile.
    """

    def __init__(self, folders: "list[str]", every_s: float = _EVERY_S) -> None:
        self._folders, self._every_s = folders, every_s
        self._thread: threading.Thread | None = None
        self._next = 0.0
        self._measured: dict[str, tuple[int, int]] = {}
        self._known: dict[str, tuple[int, int]] = {}
        self._begun = (0, 0)  # what was written when the measurement before the last began, and the last
        self._grown, self._where = 0, ""

    def look(self, written: int) -> "dict[str, Any]":
        """How often they have ``grown`` by our own hand, and ``where`` last.

        Args:
            written: bytes that our own processes have written to files so far.
        """
        now = time.monotonic()
        if self._measured is not self._known:
            self._compare(self._measured, written)
        if now >= self._next and (self._thread is None or not self._thread.is_alive()):
            self._next = now + self._every_s
            self._begun = (self._begun[1], written)
            self._thread = threading.Thread(target=self._measure, daemon=True)
            self._thread.start()
        return {"grown": self._grown, "where": self._where}

    def _compare(self, sizes: "dict[str, tuple[int, int]]", written: int) -> None:
        changes = {f: size[1] - self._known[f][1] for f, size in sizes.items() if f in self._known}
        grown = [folder for folder, change in changes.items() if change > 0]
        if grown and 2 * (written - self._begun[0]) >= sum(changes[folder] for folder in grown):
            self._grown, self._where = self._grown + 1, grown[0]
        self._known = sizes

    def _measure(self) -> None:
        began = time.monotonic()
        self._measured = {folder: measure(folder) for folder in self._folders}
        self._next = max(self._next, began + 20 * (time.monotonic() - began))  # at most a twentieth of a core


def measure(folder: str) -> "tuple[int, int]":
    """Files below ``folder`` and their bytes; (0, 0) when there is none. What vanishes meanwhile is not counted."""
    files = size = seen = 0
    ahead = [folder]
    while ahead and seen < _MOST:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
                        continue
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return files, size
