"""``make pictures``: docs/images/launch.svg and verdict.svg, what a terminal shows of a real launch and of a real hang.

A lab of its own is brought up, a server is launched in tmux, then once more with a fault. What tmux has on its screen
at the end, colours included, is what the picture shows; nothing is drawn by hand. Minutes. One of them alone:
``python -m scripts.terminal_pictures verdict``.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SOCKET = "hsops-pictures"
WIDTH = 124
PATIENCE_S = 900.0
RANKS = "4"
FAULT = "futex-wait@warm-up"  # one rank waits for a lock, the others for it: a verdict that names somebody


def main() -> None:
    """Make both, or those that are named."""
    wanted = sys.argv[1:] or ["launch", "verdict"]
    with tempfile.TemporaryDirectory(prefix="hsops-pictures-") as name:
        home = Path(name) / "lab"
        try:
            hsops("lab", "up", "--home", str(home), "--tp", RANKS)
            inventory = ("-i", str(home / "inventory.yaml"))
            hsops(*inventory, "deploy", "--yes")
            hsops(*inventory, "launch", "--wait-healthy")  # a good run, so that the next one has something beside it
            hsops(*inventory, "stop")
            if "launch" in wanted:
                picture("launch", home, "launch", "--wait-healthy")
                hsops(*inventory, "stop")
            if "verdict" in wanted:
                hsops("lab", "up", "--home", str(home), "--tp", RANKS, "--fault", FAULT)
                picture("verdict", home, "launch", "--wait-healthy")
        finally:
            subprocess.run(["tmux", "-L", SOCKET, "kill-server"], capture_output=True, check=False)
            hsops("lab", "down", "--home", str(home), "--purge")


def hsops(*words: str) -> None:
    """Run it; what it says goes past."""
    subprocess.run([sys.executable, "-m", "hsops", *words], check=True, stdin=subprocess.DEVNULL)


def picture(name: str, home: Path, *words: str) -> None:
    """Type a command in a terminal and keep its last screen."""
    argv = [sys.executable, "-m", "hsops", "-i", str(home / "inventory.yaml"), *words]
    done = home / f"{name}.done"
    line = f"{shlex.join(argv)}; echo $? > {shlex.quote(str(done))}; sleep {PATIENCE_S:.0f}"
    tmux = ["tmux", "-L", SOCKET]
    subprocess.run(
        [*tmux, "-f", "/dev/null", "new-session", "-d", "-s", name, "-x", str(WIDTH), "-y", "60", line], check=True
    )
    until = time.monotonic() + PATIENCE_S
    while not done.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{shlex.join(words)} takes too long")
        time.sleep(0.2)
    shown = [*tmux, "capture-pane", "-p", "-e", "-J", "-t", name]  # -J: a line that the terminal broke is whole again
    screen = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    subprocess.run([*tmux, "kill-session", "-t", name], check=True)
    title = f"$ hsops {shlex.join(words)}"
    (IMAGES / f"{name}.svg").write_text(svg(screen.replace(str(home), "~/.hsops-lab"), title), encoding="utf-8")
    print(f"docs/images/{name}.svg")  # noqa: T201


def svg(screen: str, title: str) -> str:
    """A screen as a picture that loads nothing from anywhere; a line that is too long is broken between words."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    lines = re.sub(r"[ \t]+$", "", screen, flags=re.MULTILINE).rstrip()
    console.print(Text.from_ansi(lines), soft_wrap=False)
    form = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace")
    return re.sub(
        r"[ \t]+$", "", console.export_svg(title=title, code_format=form, unique_id="hsops"), flags=re.MULTILINE
    )


if __name__ == "__main__":
    main()
