"""How the crash tests read a trace."""

from __future__ import annotations

from pathlib import Path

from tests.faults.syscalls import calls

TRACE = """\
7  openat(AT_FDCWD</>, "/a", O_RDONLY) = 3</a>
7  fsync(3</a> <unfinished ...>
8  write(1<pipe:[5]>, "beat", 4) = 4
7  <... fsync resumed>)              = 0
7  rename("/a", "/b" <unfinished ...>
8  +++ killed by SIGKILL +++
7  <... rename resumed>)             = ?
7  +++ killed by SIGKILL +++
"""


def test_a_call_that_strace_breaks_off_is_one(tmp_path: Path) -> None:
    """Another thread had something to tell meanwhile: it counts where it began, once."""
    (tmp_path / "trace").write_text(TRACE)

    found = [(call.name, call.nth, call.result) for call in calls(tmp_path / "trace")]

    assert found == [("openat", 1, "3"), ("fsync", 1, "0"), ("write", 1, "4"), ("rename", 1, "?")]


def test_a_call_that_never_came_back_counts_too(tmp_path: Path) -> None:
    """The process was killed in it."""
    (tmp_path / "trace").write_text(TRACE.replace("7  <... rename resumed>)             = ?\n", ""))

    assert calls(tmp_path / "trace")[-1].what == ("rename", 1, ("/a", "/b"))
