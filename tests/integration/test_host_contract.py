"""What every host promises, whichever way it is reached: here, over paramiko, and in bulk over OpenSSH's client."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from hsops.core.command import Command
from hsops.core.deadline import Deadline
from hsops.core.errors import DeadlineError, RemoteError
from hsops.core.inventory import HostSpec
from hsops.remote.connect import connect
from hsops.remote.host import Completed, Host, Stream
from tests.hosts import sh, wait_gone

Start = Callable[..., Stream]
MIB = 1 << 20
ODD = ["", "a b", "'", '"', "a\nb", "$HOME", "`id`", "*", "\\", "é☃", "~", "-n", "!x", "a;b&c|d>e", "~root", "%s"]


@pytest.fixture(scope="module", params=["local", "ssh"])
def host(request: pytest.FixtureRequest, sshd_host: HostSpec) -> Iterator[Host]:
    """The host, here and over SSH."""
    spec = sshd_host if request.param == "ssh" else sshd_host.model_copy(update={"ssh": "local"})
    host = connect(spec)
    yield host
    host.close()


@pytest.fixture(params=["stream", "bulk"])
def start(request: pytest.FixtureRequest, host: Host) -> Start:
    """The host's ways to start a command whose output is read as it comes."""
    method: Start = getattr(host, request.param)
    return method


def drain(stream: Stream) -> Completed:
    """Read a stream to its end."""
    with stream:
        out = b"".join(stream)
        done = stream.finish()
    return Completed(done.exit, out, done.stderr)


@pytest.mark.parametrize(
    "script, exit_code",
    [("exit 0", 0), ("exit 3", 3), ("exit 128", 128), ("exit 255", 255), ("kill -9 $$", -9), ("kill -TERM $$", -15)],
)
def test_an_exit_is_a_result(start: Start, script: str, exit_code: int) -> None:
    """The command's status, or minus the signal that ended it."""
    assert drain(start(sh(script))) == Completed(exit_code, b"", b"")


def test_a_missing_program_is_127(start: Start) -> None:
    """As for a shell, with its name on stderr."""
    done = drain(start(Command(("no-such-program", "x"))))

    assert done.exit == 127
    assert b"no-such-program" in done.stderr


def test_output_and_errors_are_apart(start: Start) -> None:
    """Bytes, unchanged."""
    assert drain(start(sh(r"printf 'a\000\377\n'; echo b >&2"))) == Completed(0, b"a\0\xff\n", b"b\n")


def test_odd_arguments_arrive_as_they_are(start: Start) -> None:
    """Quotes, newlines, dollars, unicode: no shell on the way changes them."""
    done = drain(start(Command(("printf", "%s\\0", *ODD[:10], *ODD[11:]))))

    assert done.stdout.decode().split("\0")[:-1] == ODD[:10] + ODD[11:]


def test_a_leading_tilde_is_the_remote_home(start: Start) -> None:
    """``~`` and ``~/x y`` expand, a tilde elsewhere does not."""
    done = drain(start(Command(("printf", "%s|", "~", "~/x y", "a~/b"))))

    home = os.path.expanduser("~")
    assert done.stdout.decode() == f"{home}|{home}/x y|a~/b|"


def test_environment_is_set_for_the_command(start: Start) -> None:
    """With odd values too."""
    done = drain(start(Command(("sh", "-c", 'printf %s "$ODD"'), env={"ODD": "a 'b' $c\n"})))

    assert done.stdout == b"a 'b' $c\n"


def test_there_is_no_terminal(start: Start) -> None:
    """Neither on any descriptor nor as the session's."""
    done = drain(start(sh("tty; test -t 1 || test -t 2 || echo none; (: </dev/tty) 2>&1 || echo no session")))

    assert done.stdout.splitlines()[:2] == [b"not a tty", b"none"]
    assert done.stdout.endswith(b"no session\n")


def test_a_command_can_be_talked_with(host: Host) -> None:
    """Each answer before the next question, whatever its size, and a clock of its own for each."""
    with host.stream(Command(("cat",)), talk=True) as stream:
        pieces = iter(stream)
        for size in (1, 5 * MIB, 70_000):
            data, got = os.urandom(size), b""
            stream.say(data, Deadline(idle=30))
            while len(got) < size:
                got += next(pieces)
            assert got == data and stream.listens
        stream.say(b"", Deadline(idle=0.5, connect=0))
        with pytest.raises(DeadlineError):
            next(pieces)


def test_a_command_that_is_talked_with_ends_when_it_likes(host: Host) -> None:
    """Its status is its own, and what is said then goes nowhere."""
    with host.stream(sh("read x; exit $x"), talk=True) as stream:
        stream.say(b"7\n", Deadline())
        assert stream.finish().exit == 7
        assert not stream.listens
        stream.say(b"8\n", Deadline())


@pytest.mark.parametrize("talk", [True, False])
def test_leaving_ends_a_command_that_ignores_its_input(host: Host, talk: bool) -> None:
    """Also one whose input is still open."""
    with host.stream(sh("echo $$; exec sleep 600"), talk=talk) as stream:
        pid = first_number(stream)

    assert wait_gone(pid)


@pytest.mark.parametrize("size", [0, 1, 70_000, 5 * MIB])
def test_stdin_arrives_whole_and_ends(start: Start, size: int) -> None:
    """The command sees all of it, then the end of the file."""
    data = os.urandom(size)

    assert drain(start(Command(("cat",)), stdin=data)).stdout == data


def test_unread_stdin_does_not_hang(start: Start) -> None:
    """A command that ends without reading is done at once."""
    assert drain(start(Command(("true",)), stdin=bytes(5 * MIB))).exit == 0


def test_64_mib_of_output_are_equal(start: Start) -> None:
    """Every byte counts."""
    with start(sh("head -c 67108864 /dev/zero | tr '\\0' 'x'")) as stream:
        sizes = [len(piece) for piece in stream if piece.strip(b"x") == b""]
        assert stream.finish().exit == 0

    assert sum(sizes) == 64 * MIB


def test_both_outputs_full_at_once_do_not_deadlock(start: Start) -> None:
    """More than SSH's 2 MiB window on stderr first, then on stdout."""
    done = drain(start(sh("head -c 7340032 /dev/zero >&2; head -c 7340032 /dev/zero")))

    assert (len(done.stdout), len(done.stderr)) == (7 * MIB, 7 * MIB)


def test_output_comes_as_it_is_written(start: Start) -> None:
    """The first line is there while the command still runs."""
    with start(sh("echo first; exec sleep 600")) as stream:
        assert next(iter(stream)) == b"first\n"


DRIP = "for i in 1 2 3 4 5 6 7 8 9 10 11; do echo x; sleep 0.25; done"


def test_silence_ends_at_the_idle_deadline(start: Start) -> None:
    """Output restarts that clock: lines 0.25 s apart outlast an idle deadline of 2.5 s, then silence does not."""
    for _ in range(3):  # a busy machine may hold a line back for as long, once
        got: list[bytes] = []
        with (
            start(sh(f"{DRIP}; exec sleep 600"), deadline=Deadline(idle=2.5)) as stream,
            pytest.raises(DeadlineError, match=r"2\.5 s"),
        ):
            got.extend(stream)
        if b"".join(got) == b"x\n" * 11:
            break

    assert b"".join(got) == b"x\n" * 11


def test_stderr_counts_as_a_sign_of_life(start: Start) -> None:
    """A command that only logs is not idle."""
    said = b""
    for _ in range(3):  # as above
        with contextlib.suppress(DeadlineError):
            said = drain(start(sh(f"({DRIP}) >&2"), deadline=Deadline(idle=2.5))).stderr
            break

    assert said == b"x\n" * 11


def test_chatter_ends_at_the_total_deadline(start: Start) -> None:
    """However much a command says, it has to end."""
    with (
        start(sh("while echo x; do sleep 0.05; done"), deadline=Deadline(idle=30, total=1)) as stream,
        pytest.raises(DeadlineError, match="not done after 1 s"),
    ):
        for _ in stream:
            pass


def first_number(stream: Stream) -> int:
    """The pid that a command prints first."""
    return int(next(iter(stream)))


@pytest.mark.parametrize(
    "script",
    [
        "echo $$; exec sleep 600",
        "trap '' TERM; echo $$; while :; do sleep 1; done",
        "sleep 600 & echo $!; wait",
        "echo $$; exec cat /dev/zero",
    ],
    ids=["plain", "ignores TERM", "grandchild", "writes"],
)
def test_leaving_ends_the_command(start: Start, script: str) -> None:
    """On the host, with its children, politely first."""
    with start(sh(script)) as stream:
        pid = int(next(iter(stream)).split(b"\n")[0])
        assert psutil.pid_exists(pid)

    assert wait_gone(pid)


def test_a_command_may_end_in_its_own_way(start: Start, tmp_path: Path) -> None:
    """SIGTERM comes first and leaves time."""
    with start(sh("trap 'echo bye >\"$1\"; exit' TERM; echo $$; sleep 600 & wait", str(tmp_path / "bye"))) as stream:
        pid = first_number(stream)

    assert wait_gone(pid)
    assert (tmp_path / "bye").read_text() == "bye\n"


def test_what_starts_a_session_of_its_own_stays(start: Start) -> None:
    """That is how a server outlives the call that launched it."""
    script = "echo $$; exec sleep 600 >/dev/null 2>&1 </dev/null"  # it has its session when it says its pid
    with start(sh(f"setsid sh -c '{script}' & exec sleep 600")) as stream:
        pid = first_number(stream)

    server = psutil.Process(pid)
    assert server.is_running()
    server.kill()


def test_a_background_process_does_not_keep_the_call_waiting(host: Host) -> None:
    """A command has ended when it ended, even if a child of it holds the output."""
    began = time.monotonic()
    with host.stream(sh("sleep 600 & echo $!; exit 4")) as stream:
        pid = int(b"".join(stream))
        assert stream.finish().exit == 4

    assert time.monotonic() - began < 30
    psutil.Process(pid).kill()


def test_many_streams_at_once(start: Start) -> None:
    """From several threads, over whatever connections there are."""
    barrier = threading.Barrier(6)

    def one(i: int) -> bytes:
        with start(sh(f"echo {i}; read x; echo $x"), stdin=b"in\n") as stream:
            barrier.wait(60)  # all are open at the same time
            return b"".join(stream)

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(one, range(6))) == [f"{i}\nin\n".encode() for i in range(6)]


def test_run_gathers_everything(host: Host) -> None:
    """Output, errors and status in one value."""
    assert host.run(sh("cat; echo e >&2; exit 7"), stdin=b"in") == Completed(7, b"in", b"e\n")


def test_put_writes_whole_files_with_their_mode(host: Host, tmp_path: Path) -> None:
    """New parents are private, the temporary file is gone."""
    path, data = tmp_path / "new" / "deep er" / "it's", os.urandom(3 * MIB)

    host.put(data, str(path), mode=0o640)

    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o640
    assert [folder.stat().st_mode & 0o777 for folder in path.parents[:2]] == [0o700, 0o700]
    assert list(path.parent.iterdir()) == [path]


def test_put_replaces_in_one_step(host: Host, tmp_path: Path) -> None:
    """A reader holds either the old file or the new one, never a mixture."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        host.put(b"", str(path))

        assert reader.read() == b"old"
    assert path.read_bytes() == b""


def test_put_where_nothing_can_be_written_says_so(host: Host) -> None:
    """And leaves nothing."""
    with pytest.raises(RemoteError, match="cannot write /proc/nothing/file"):
        host.put(b"x", "/proc/nothing/file")
