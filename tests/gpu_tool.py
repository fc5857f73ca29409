"""An nvidia-smi for a machine without one: it tells what a file says of processes that are there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

UUID = "GPU-3"
# `holders`: lines of pid, MiB and uuid; a fourth word: told although the process is gone. `used`: MiB of no process.
SCRIPT = """\
#!/bin/sh
here=$(dirname "$0")
used=$(cat "$here/used")
rows() {
  while read -r pid mib uuid stays; do
    state=$(sed 's/.*) //; s/ .*//' "/proc/$pid/stat" 2>/dev/null)
    case "$stays${state:-Z}" in Z|X) continue ;; esac
    echo "$pid, $mib, $uuid"
  done <"$here/holders"
}
case "$*" in
*compute-apps*) rows ;;
*query-gpu*)
  for mib in $(rows | cut -d, -f2); do used=$((used + mib)); done
  echo "3, GPU-3, NVIDIA RTX PRO 6000, 580.95.05, 12.0, $used, 97887, 0, 31.2, P8, 1, 5, 16, 16" ;;
esac
"""


class GpuTool:
    """``nvidia-smi`` in a folder of its own, first on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "nvidia-smi").write_text(SCRIPT)
        (folder / "nvidia-smi").chmod(0o755)
        self.tell()
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def tell(self, *holders: tuple[int, int], stays: bool = False, used: int = 0) -> None:
        """(pid, MiB) each; ``stays``: also when it is gone; ``used``: MiB that no process has."""
        lines = [f"{pid} {mib} {UUID} {'stays' if stays else ''}\n" for pid, mib in holders]
        (self._folder / "holders").write_text("".join(lines))
        (self._folder / "used").write_text(str(used))
