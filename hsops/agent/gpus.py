"""GPU memory in use, without ever waiting for nvidia-smi: it blocks for 45 s and more when a GPU's firmware is gone."""

import shutil
import subprocess
import time
from collections.abc import Container

_EVERY_S = 5.0
_FORMAT = "--format=csv,noheader,nounits"
_OF_PROCESSES = "--query-compute-apps=pid,used_memory"
_OF_GPUS = "--query-gpu=index,memory.used"


class GpuMemory:
    """Asks in the background and tells the last answer. One that does not answer is not asked again.

    Where the driver shows our processes, their memory counts: a neighbour's must not speak for them. In a container it
    mostly shows none, or pids of the host; then the GPUs that ``visible``, its CUDA_VISIBLE_DEVICES, shows to it count
    as a whole: all of them where that is empty, or names them otherwise than by numbers.
    """

    def __init__(self, visible: str = "") -> None:
        words = {word.strip() for word in visible.split(",")}
        self._shown = words if all(word.isdecimal() for word in words) else None
        self._tool = shutil.which("nvidia-smi")
        self._child: subprocess.Popen[str] | None = None
        self._query = _OF_PROCESSES
        self._next = 0.0
        self.mib: int | None = None

    def look(self, pids: "Container[int]") -> "int | None":
        """MiB in use by ``pids``, else on its GPUs together, a few seconds old; None without GPUs or an answer."""
        now = time.monotonic()
        if self._child and self._child.poll() is not None:
            self._take(self._child.communicate()[0], pids)
            self._child = None
        if self._tool and not self._child and now >= self._next:
            self._next = now + (_EVERY_S if self._query == _OF_PROCESSES else 0.0)
            self._child = subprocess.Popen(
                [self._tool, self._query, _FORMAT],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self.mib

    def _take(self, text: str, pids: "Container[int]") -> None:
        if self._query == _OF_GPUS:
            self.mib, self._query = parse(text, self._shown), _OF_PROCESSES
        elif (own := of_processes(text, pids)) is not None:
            self.mib = own
        else:
            self._query, self._next = _OF_GPUS, 0.0

    def close(self) -> None:
        """End a question under way."""
        if self._child and self._child.poll() is None:
            self._child.kill()


def of_processes(text: str, pids: "Container[int]") -> "int | None":
    """The sum over ``pids``; None when none of them is named with a figure (``[N/A]``: the driver does not tell)."""
    rows = [line.split(",") for line in text.split("\n") if line.count(",") == 1]
    own = [int(mib) for pid, mib in rows if pid.strip().isdigit() and int(pid) in pids and mib.strip().isdigit()]
    return sum(own) if own else None


def parse(text: str, shown: "Container[str] | None" = None) -> "int | None":
    """The sum over the GPUs of these indices, or all where none has one; None without numbers (``[N/A]``, an error)."""
    rows = [line.partition(",")[::2] for line in text.split("\n") if line.strip()]
    try:
        values = [int(mib) for index, mib in rows if shown and index.strip() in shown] or [int(mib) for _, mib in rows]
    except ValueError:
        return None
    return sum(values) if values else None
