"""Stands in front of the host's Python and lets ``dumps-send`` write only so much.

The inventory names this script as the host's ``python``. Beside it lies ``gate.plan``: each call takes the first line,
``hold N`` (after N bytes say nothing more) or ``cut N`` (after N bytes die) or ``slow N`` (N bytes a second) or
``pause N`` (after N bytes wait for the file ``gate.go``) or ``flip N`` (the byte after N is another one); without a
line everything passes.
"""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

PIECE = 1 << 16


def main() -> None:
    """Run the real Python, or sit between it and the client."""
    words = sys.argv[1:]
    mode, amount = take() if words and words[-1] == "dumps-send" else ("", 0)
    if not mode:
        os.execv(sys.executable, [sys.executable, *words])
    child = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE)
    assert child.stdout
    try:
        if mode == "slow":
            while data := child.stdout.read1(PIECE):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                time.sleep(len(data) / amount)
            return
        while amount and (data := child.stdout.read1(min(PIECE, amount))):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            amount -= len(data)
        if mode == "flip":
            data = bytearray(child.stdout.read(1))
            data[0] ^= 1
            sys.stdout.buffer.write(data)
            pass_on(child.stdout)
            os._exit(child.wait())
        if mode == "hold":
            time.sleep(3600)
        if mode == "pause":
            while not Path(sys.argv[0]).with_name("gate.go").exists():
                time.sleep(0.01)
            pass_on(child.stdout)
            os._exit(child.wait())
    finally:
        child.kill()
    os._exit(1)


def pass_on(source: BinaryIO) -> None:
    """All that comes."""
    while data := source.read1(PIECE):  # type: ignore[attr-defined]
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def take() -> "tuple[str, int]":
    """The plan's next line."""
    path = Path(sys.argv[0]).parent / "gate.plan"
    if not path.exists():
        return "", 0
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        first, _, rest = file.read().partition("\n")
        file.seek(0)
        file.truncate()
        file.write(rest)
    mode, _, amount = first.partition(" ")
    return mode, int(amount or 0)


if __name__ == "__main__":
    main()
