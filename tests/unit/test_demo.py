"""demo: what its acts print goes where it may."""

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
