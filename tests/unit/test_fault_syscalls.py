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


def test_a_call_is_known_again_by_its_paths(tmp_path: Path) -> None:
    """Not by strace's count: that of a run which lists the processes of a busy machine is another each time."""
    few, many = tmp_path / "few", tmp_path / "many"
    few.write_text('7  openat(AT_FDCWD</>, "/a", O_RDONLY) = 3</a>\n' * 2)
    many.write_text('7  openat(AT_FDCWD</>, "/proc/1/cmdline", O_RDONLY) = 3</x>\n' + few.read_text())

    assert [call.what for call in calls(few)] == [call.what for call in calls(many)][1:]
    assert [call.nth for call in calls(many)] == [1, 2, 3] and len({call.what for call in calls(few)}) == 2


def test_a_call_that_strace_failed_is_told(tmp_path: Path) -> None:
    """From one that the kernel failed."""
    (tmp_path / "trace").write_text('7  rmdir("/a") = -1 EIO (Error) (INJECTED)\n7  rmdir("/b") = -1 EIO (Error)\n')

    assert [(call.failed, call.injected) for call in calls(tmp_path / "trace")] == [(True, True), (True, False)]
