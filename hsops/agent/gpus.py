"""GPU memory in use, without ever waiting for nvidia-smi: it blocks for 45 s and more when a GPU's firmware is gone."""

import shutil
import subprocess
import time

_EVERY_S = 5.0
_QUERY = ("--query-gpu=memory.used", "--format=csv,noheader,nounits")


class GpuMemory:
    """Asks in the background and tells the last answer. One that does not answer is not asked again."""

    def __init__(self) -> None:
        self._tool = shutil.which("nvidia-smi")
        self._child: subprocess.Popen[str] | None = None
        self._next = 0.0
        self.mib: int | None = None

    def look(self) -> "int | None":
        """MiB in use on all GPUs together, a few seconds old; None without GPUs or an answer."""
        now = time.monotonic()
        if self._child and self._child.poll() is not None:
            self.mib = parse(self._child.communicate()[0])
            self._child = None
        if self._tool and not self._child and now >= self._next:
            self._next = now + _EVERY_S
            self._child = subprocess.Popen(
                [self._tool, *_QUERY],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self.mib

    def close(self) -> None:
        """End a question under way."""
        if self._child and self._child.poll() is None:
            self._child.kill()


def parse(text: str) -> "int | None":
    """The sum of the lines; None when a line is no number (``[N/A]``, an error message)."""
    try:
        values = [int(line) for line in text.split("\n") if line.strip()]
    except ValueError:
        return None
    return sum(values) if values else None
