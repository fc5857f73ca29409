"""demo: what its acts print goes where it may."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hsops.core.events import ignore
from hsops.demo.story import Stage, Teller


@pytest.mark.parametrize("aside", [False, True])
def test_stdout_is_left_to_json(aside: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With --json the commands of the story write to stderr only."""
    teller = Teller(Stage(tmp_path, None, 1, aside=aside), ignore)

    teller.act("The shortest act.", ["--version"])

    out, err = capfd.readouterr()
    assert (err if aside else out).startswith("hsops ")
    assert (out if aside else err) == ""


def test_an_act_ends_with_the_demo_that_was_killed() -> None:
    """SIGKILL gives the demo no chance to end its act; the kernel interrupts it."""
    read, write = os.pipe()
    act = "import os, sys, time; os.write(int(sys.argv[1]), b'x'); time.sleep(600)"
    teller = (
        "import subprocess, sys\n"
        "from hsops.demo.story import end_with_parent\n"
        f"subprocess.run([sys.executable, '-c', {act!r}, '{write}'], pass_fds=[{write}], preexec_fn=end_with_parent)"
    )
    demo = subprocess.Popen([sys.executable, "-c", teller], pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        assert pipe.read(1) == b"x"  # the act runs
        demo.kill()
        demo.wait()

        assert pipe.read(1) == b""  # and with it went the last one that holds the pipe
