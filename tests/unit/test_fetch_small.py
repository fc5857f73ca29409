"""Small files travel whole: the agent's frame, and what is put into a part file of it."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hsops.agent import frames, send
from hsops.core.checksum import checksum_of_bytes
from hsops.fetch.dumps import DumpLayout
from hsops.fetch.folder import open_folder
from hsops.fetch.line import needs_sum
from hsops.fetch.pieces import Piece, pieces_of
from hsops.fetch.plan import File, Part, Transfer
from hsops.fetch.stream import Hooks, Receiver
from hsops.fetch.tree import file_of
from hsops.fetch.trouble import Trouble
from hsops.remote.tree import Entry

BODY = b"0123456789"


class Answers:
    """A line whose answers the agent's own code makes; ``harm`` changes them on the way."""

    def __init__(self, folder: Path, harm: tuple[bytes, bytes] = (b"", b"")) -> None:
        self._folder, self._harm, self._out, self.kinds = folder, harm, bytearray(frames.MAGIC), set[str]()
        self.flush = lambda: None

    def ask(self, batch: Sequence[Piece], sums: str, *, always: bool) -> None:
        for i, piece in enumerate(batch):
            file = piece.transfer.file
            sum_from = piece.start if always or needs_sum(piece) else -1
            total = send.Sum(sums) if sum_from >= 0 else None
            small = piece.at == 0 and file.bytes <= frames.SMALL
            if not (small and send._send_small(self, i, str(self._folder / file.name), file.bytes, total)):  # type: ignore[arg-type]
                stretch = (piece.at, piece.end, file.bytes, sum_from)
                send._send_or_say_why(self, i, str(self._folder / file.name), stretch, total)  # type: ignore[arg-type]
        self.write(frames.pack(frames.DONE))

    def write(self, data: bytes) -> None:
        self._out += data.replace(*self._harm) if self._harm[0] else data

    def copy(self, handle: int, offset: int, length: int, total: send.Sum | None) -> int:
        data = os.pread(handle, length, offset)
        if total is not None:
            total.update(data)
        self.write(data)
        return len(data)

    def read(self, _: int) -> bytes:
        found = bytes(self._out)
        self._out.clear()
        return found

    def why(self) -> str:
        return ""

    def close(self) -> None:
        pass


def come(tmp_path: Path, file: File, line: Answers, *, always: bool = False, done: int = 0) -> list[Any]:
    """What is told of one file, of which ``done`` bytes are here."""
    told, todo = list[Any](), [tuple(pieces_of(Transfer(file, Part(done), "new")))]

    def landed(many: Sequence[tuple[Piece, File]]) -> None:
        told.extend(found for _, found in many)

    def trouble(_: Piece, why: Trouble) -> None:
        told.append(why.code)

    take = lambda _: todo.pop() if todo else ()  # noqa: E731
    hooks = Hooks(take, told.append, landed, lambda _: told.append("wrong"), trouble)
    with open_folder(tmp_path / "to", DumpLayout()) as folder:
        Receiver(line, folder, hooks, "h", always=always).run(threading.Event())
    return told


def listed(path: Path) -> File:
    """A file of a tree."""
    found = path.stat()
    return replace(file_of(Entry(path.name, found.st_size, found.st_mtime_ns, found.st_ino)), part="a.part")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """With one small file."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host/a").write_bytes(BODY)
    return tmp_path / "host"


@pytest.mark.parametrize("kind", ["xxh3", "crc32"])
@pytest.mark.parametrize("always", [True, False])
def test_it_is_written_and_then_told(kind: str, always: bool, host: Path, tmp_path: Path) -> None:
    """With its checksum, the manifest's or the sender's, and the inode that it had."""
    dump = File("a", "a", 10, "v", "a.part", checksum_of_bytes(BODY, kind))

    count, found = come(tmp_path, dump, Answers(host), always=always)

    assert count == 10 and (tmp_path / "to/a.part").read_bytes() == BODY
    assert (found.checksum, found.inode) == (
        dump.checksum,
        ((host / "a").stat().st_ino, (host / "a").stat().st_mtime_ns),
    )
    assert come(tmp_path, listed(host / "a"), Answers(host))[1].checksum == checksum_of_bytes(BODY, "xxh3")


def test_an_empty_one_too(host: Path, tmp_path: Path) -> None:
    """There is a part file of it."""
    (host / "a").write_bytes(b"")

    (found,) = come(tmp_path, listed(host / "a"), Answers(host))

    assert found.name == "a" and (tmp_path / "to/a.part").stat().st_size == 0


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("always", [True, False])
def test_a_byte_that_is_flipped_is_never_written(tree: bool, always: bool, host: Path, tmp_path: Path) -> None:
    """By the manifest's sum, or by the sender's."""
    file = listed(host / "a") if tree else File("a", "a", 10, "v", "a.part", checksum_of_bytes(BODY, "xxh3"))

    told = come(tmp_path, file, Answers(host, (b"456", b"4_6")), always=always)

    assert [t for t in told if t != 10] == ["wrong"]
    assert not (tmp_path / "to/a.part").exists()


def test_a_sum_that_the_sender_leaves_out_proves_nothing(host: Path, tmp_path: Path) -> None:
    """Of a file whose manifest has none."""
    file = listed(host / "a")
    body = checksum_of_bytes(BODY, "xxh3").encode()
    head = frames.WHOLE_HEAD.pack((host / "a").stat().st_ino, len(body))

    told = come(tmp_path, file, Answers(host, (head + body, head[:-1] + b"\0")))

    assert "wrong" in told and not (tmp_path / "to/a.part").exists()


def test_another_file_of_that_name_is_told(host: Path, tmp_path: Path) -> None:
    """It was replaced since it was listed, by one of that size."""
    file = listed(host / "a")
    (host / "b").write_bytes(b"abcdefghij")
    (host / "b").rename(host / "a")

    assert "changed" in come(tmp_path, file, Answers(host))
    assert not (tmp_path / "to/a.part").exists()


@pytest.mark.parametrize("what", ["link", "folder", "size", "gone", "pipe", "old"])
def test_what_is_odd_goes_the_long_way(what: str, host: Path, tmp_path: Path) -> None:
    """Which tells why, or brings it all the same."""
    file, path = listed(host / "a"), host / "a"
    if what == "old":  # before 1970
        os.utime(path, ns=(-5, -5))
        file = listed(path)
    else:
        path.rename(host / "b")
        {
            "link": lambda: path.symlink_to("b"),
            "folder": path.mkdir,
            "size": lambda: path.write_bytes(b"x"),
            "gone": lambda: None,
            "pipe": lambda: os.mknod(path, stat.S_IFIFO | 0o600),
        }[what]()
    said = {"link": "unreadable", "folder": "unreadable", "size": "changed", "gone": "missing", "pipe": "unreadable"}

    told = come(tmp_path, file, Answers(host))

    assert told[-1] == said[what] if what in said else told[-1].inode[1] == -5


@pytest.mark.parametrize("before", [b"", b"an older and longer beginning"])
def test_what_was_there_of_it_is_replaced(before: bytes, host: Path, tmp_path: Path) -> None:
    """And a link is not written through."""
    (tmp_path / "to").mkdir()
    (tmp_path / "to/a.part").write_bytes(before)

    come(tmp_path, listed(host / "a"), Answers(host))
    assert (tmp_path / "to/a.part").read_bytes() == BODY

    (tmp_path / "to/a.part").unlink()
    (tmp_path / "to/a.part").symlink_to(tmp_path / "elsewhere")
    assert come(tmp_path, listed(host / "a"), Answers(host))[0] == "local"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("done", [0, 1, frames.SMALL, frames.SMALL + 1])
@pytest.mark.parametrize("always", [True, False])
def test_only_of_a_file_that_came_at_once_the_inode_is_known(
    done: int, always: bool, host: Path, tmp_path: Path
) -> None:
    """The rest, down to an empty one, may be of another file that has the name by now, which nobody has a copy of."""
    body = BODY * frames.SMALL
    body = body[: frames.SMALL + 1]
    (host / "a").write_bytes(body)
    (tmp_path / "to").mkdir()
    (tmp_path / "to/a.part").write_bytes(body[:done])
    dump = File("a", "a", len(body), "v", "a.part", checksum_of_bytes(body, "xxh3"))
    found = (host / "a").stat()

    arrived = come(tmp_path, dump, Answers(host), always=always, done=done)[-1]

    assert (tmp_path / "to/a.part").read_bytes() == body
    assert (arrived.checksum, arrived.inode) == (dump.checksum, None if done else (found.st_ino, found.st_mtime_ns))


@pytest.mark.parametrize("size", [10, frames.SMALL + 1])
def test_a_kind_of_sum_that_nobody_knows_proves_nothing(size: int, host: Path, tmp_path: Path) -> None:
    """It is a wrong one, and never asked for: the next file is summed up as before."""
    (host / "a").write_bytes(bytes(size))
    file, asked = listed(host / "a"), list[str]()
    todo = [tuple(pieces_of(Transfer(replace(file, part=f"{i}.part"), Part(0), "new"))) for i in range(4)]

    class Odd(Answers):
        def ask(self, batch: Sequence[Piece], sums: str, *, always: bool) -> None:
            asked.append(sums)
            super().ask(batch, sums, always=always)

        def write(self, data: bytes) -> None:
            super().write(data.replace(b"xxh3:", b"md5::"))

    wrong = list[Piece]()
    nothing: Any = lambda *_: None  # noqa: E731
    hooks = Hooks(lambda _: todo.pop() if todo else (), nothing, nothing, wrong.append, nothing)
    with open_folder(tmp_path / "to", DumpLayout()) as folder:
        Receiver(Odd(host), folder, hooks, "h").run(threading.Event())

    assert (len(wrong), asked) == (4, ["xxh3"] * 4)


def test_one_whose_place_is_taken_keeps_the_others_of_its_answer(host: Path, tmp_path: Path) -> None:
    """They are written together: the bad one is that file's trouble, and its bytes do not count."""
    (host / "b").write_bytes(BODY * 2)
    (tmp_path / "to/b.part").mkdir(parents=True)
    files = [listed(host / "a"), replace(listed(host / "b"), part="b.part"), replace(listed(host / "a"), part="c.part")]
    told, todo = list[Any](), [tuple(p for f in files for p in pieces_of(Transfer(f, Part(0), "new")))]
    hooks = Hooks(
        lambda _: todo.pop() if todo else (),
        told.append,
        lambda many: told.append([file.part for _, file in many]),
        lambda _: told.append("wrong"),
        lambda piece, why: told.append((piece.transfer.file.part, why.code)),
    )

    with open_folder(tmp_path / "to", DumpLayout()) as folder:
        Receiver(Answers(host), folder, hooks, "h").run(threading.Event())

    assert told == [2 * len(BODY), ("b.part", "local"), ["a.part", "c.part"]]
    assert [(tmp_path / "to" / name).read_bytes() for name in ("a.part", "c.part")] == [BODY, BODY]
