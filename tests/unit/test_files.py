"""What is no file where one belongs: an error at once, whoever reads it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hsops.cli.diagnose import NOTHING, _of_log
from hsops.core.dumps import MANIFEST
from hsops.core.errors import BadDataError
from hsops.core.events import ignore
from hsops.core.files import open_file
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
