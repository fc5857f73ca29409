"""What is no file where one belongs: an error at once, whoever reads it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from hsops.cli.deploy import Wish, _keep
from hsops.cli.diagnose import NOTHING, Keep, _of_log
from hsops.core.dumps import MANIFEST
from hsops.core.errors import BadDataError, UsageError
from hsops.core.events import ignore
from hsops.core.files import open_file, output_file
from hsops.fetch.dumps import DumpLayout, file_of
from hsops.fetch.folder import open_folder
from hsops.verify.verify import verify
from tests.dump_maker import make

pytestmark = pytest.mark.timeout(20)  # a reader that waits for a pipe waits for ever


def a_pipe(path: Path) -> None:
    """Nobody writes to it."""
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    """Nobody listens."""
    os.mknod(path, stat.S_IFSOCK | 0o600)  # bind() takes no path as long as pytest's


def a_link_to_a_pipe(path: Path) -> None:
    """A link is followed before it is judged."""
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": a_pipe,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": a_socket,
    "a pipe behind a link": a_link_to_a_pipe,
}


def fetch_folder(folder: Path) -> None:
    """The local side of hsops fetch."""
    with open_folder(folder, DumpLayout()) as opened:
        opened.read()


READERS: dict[str, Callable[[Path], object]] = {
    "verify": lambda folder: verify(folder, None, ignore),
    "fetch": fetch_folder,
    "diagnose --log": lambda folder: _of_log(folder / MANIFEST, None, NOTHING, ignore),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_told_at_once(tmp_path: Path, kind: str, reader: str) -> None:
    """Its kind is named, and its path; nothing waits for a pipe, and nothing reads a device to its end."""
    KINDS[kind](tmp_path / MANIFEST)

    with pytest.raises(BadDataError) as caught:
        READERS[reader](tmp_path)

    assert caught.value.message.startswith(f"{tmp_path / MANIFEST} is {kind.removesuffix(' behind a link')}, not a ")
    assert caught.value.fix


def test_a_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    """A manifest may lie elsewhere."""
    (tmp_path / "there").write_bytes(b"x")
    (tmp_path / "here").symlink_to("there")

    for name in ("there", "here"):
        with open_file(tmp_path / name) as file:
            assert file.read() == b"x"


def test_pipes_where_fetch_writes_are_no_trap(tmp_path: Path) -> None:
    """The new manifest's temporary name and a part file: one is replaced, the other an error."""
    with open_folder(tmp_path / "to", DumpLayout()) as folder:
        file = file_of(make(tmp_path / "host", "a", [1, 2]), "{}")
        os.mkfifo(tmp_path / "to" / f".{MANIFEST}.new")
        os.mkfifo(folder.part(file))

        folder.manifest.forget([])
        with pytest.raises(OSError, match="No such device or address"):
            folder.open_part(file, 0)

    assert (tmp_path / "to" / MANIFEST).read_bytes() == b""


@pytest.mark.parametrize("make", KINDS.values(), ids=list(KINDS))
def test_what_is_no_file_is_not_written_over(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """By an option that names it, before anything is done; it stays what it is, and nobody waits for its reader."""
    make(tmp_path / "x")
    before = (tmp_path / "x").lstat()

    with pytest.raises(UsageError, match=r"^--out .*/x is a (pipe|folder|device|socket), not a file$"):
        output_file(tmp_path / "x", "--out")

    assert (tmp_path / "x").lstat() == before


def test_an_output_is_tried_before_it_is_needed(tmp_path: Path) -> None:
    """What is there keeps its content until then; what is not is not left behind."""
    (tmp_path / "old").write_text("old")
    (tmp_path / "loop").symlink_to("loop")

    assert output_file(tmp_path / "old", "--out") == tmp_path / "old"
    assert output_file(tmp_path / "new", "--out") == tmp_path / "new"
    for name in ("none/x", "old/x", "loop", "n" * 300, "/proc/none"):
        with pytest.raises(UsageError, match=r"^--out .* cannot be written: "):
            output_file(tmp_path / name, "--out")

    assert (tmp_path / "old").read_text() == "old"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["loop", "old"]


def test_a_pipe_for_standard_output_is_not_replaced() -> None:
    """``/dev/stdout`` is a link to a link to a pipe that has no name."""
    code = (
        "from hsops.core.files import output_file; from pathlib import Path; output_file(Path('/dev/stdout'), '--out')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "UsageError: --out /dev/stdout is a pipe, not a file" in done.stderr


def test_a_plan_takes_no_pipes_place_and_goes_through_a_link(tmp_path: Path) -> None:
    """``deploy --out``."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("plan")
    session = SimpleNamespace(console=SimpleNamespace(emit=ignore))

    with pytest.raises(UsageError, match=r"^--out .*pipe is a pipe"):
        _keep(session, [], Wish(out=str(tmp_path / "pipe")))  # type: ignore[arg-type]
    _keep(session, [], Wish(out=str(tmp_path / "link")))  # type: ignore[arg-type]

    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
    assert '"format": "hsops-plan/' in (tmp_path / "plan").read_text()


def test_what_diagnose_writes_is_tried_before_it_looks(tmp_path: Path) -> None:
    """Two options, two files; a pipe is where it may go."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("x")

    for page, said in (
        (tmp_path / "link", "--save and --html are one file"),
        (tmp_path / "no/x", "--html .* cannot be"),
    ):
        with pytest.raises(UsageError, match=said):
            Keep(tmp_path / "x", page).check()
    Keep(tmp_path / "x", tmp_path / "y").check()
    Keep(tmp_path / "pipe", tmp_path / "pipe").check()
