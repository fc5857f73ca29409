"""fetch.line: how a line over a child process ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hsops.agent import frames
from hsops.core.errors import RemoteError
from hsops.core.events import Event
from hsops.fetch import line
from hsops.fetch.dumps import DumpLayout
from hsops.fetch.folder import open_folder
from hsops.fetch.line import SshLine
from hsops.fetch.pieces import pieces_of
from hsops.fetch.plan import Part, Transfer
from hsops.fetch.stream import Hooks, Receiver
from hsops.fetch.wire import LostStreamError
from hsops.remote.direct import NoDirectWayError
from hsops.remote.host import Completed
from tests.unit.test_fetch_plan import A


class Dying:
    """A stream whose command ends between two requests, with a last word."""

    def __init__(self) -> None:
        self._asked = 0

    def __iter__(self) -> Any:
        yield frames.MAGIC

    def send(self, data: bytes) -> None:
        self._asked += 1
        if self._asked == 2:
            raise RemoteError("the command has ended", host="h")

    def finish(self) -> Completed:
        return Completed(-9, b"", b"noise\nKilled by the OOM killer\n")


def test_a_sender_that_ends_before_a_request_is_a_lost_stream(tmp_path: Path) -> None:
    """It is opened again and goes on: what was asked for and did not come is given back."""
    host = SimpleNamespace(name="h", bulk=lambda *_, **__: Dying())
    agent: Any = SimpleNamespace(host=host, request=lambda *_, **__: (None, b"{}"))
    todo = [tuple(pieces_of(Transfer(A, Part(0), "new"))) for _ in range(2)]
    hooks = Hooks(lambda _: todo.pop() if todo else (), *[lambda *_: None] * 4)  # type: ignore[list-item]

    with open_folder(tmp_path, DumpLayout()) as folder:
        receiver = Receiver(SshLine(agent, "/d"), folder, hooks, "h")
        with pytest.raises(LostStreamError, match="OOM"):
            receiver.run(threading.Event())

    assert len(receiver.rest()) == 2


class Unborn:
    """A connection that is cut before the host's shell has begun."""

    started = False

    def __iter__(self) -> Any:
        yield from ()
        raise RemoteError("the login shell said nothing", host="h")


def test_a_stream_that_is_cut_before_it_begins_is_a_lost_one() -> None:
    """The login shell works: it has just run another command."""
    host = SimpleNamespace(name="h", bulk=lambda *_, **__: Unborn())
    agent: Any = SimpleNamespace(host=host, request=lambda *_, **__: (None, b"{}"))

    with pytest.raises(LostStreamError, match="said nothing"):
        SshLine(agent, "/d").read(1)


def test_a_door_that_cannot_be_opened_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent's session was killed: the bytes come over ssh, and it is told why."""

    @contextmanager
    def shut(*_: object) -> Iterator[None]:
        raise RemoteError("the login shell said nothing", host="h")
        yield

    monkeypatch.setattr(line, "opened", shut)
    agent: Any = SimpleNamespace(host=SimpleNamespace(name="h", via=(), address="box"))
    told = list[Event]()

    with line.ways(agent, "/d", "auto", line.WORTH, told.append) as found:
        assert found.name == "ssh"
    assert "said nothing" in str(told)
    with pytest.raises(NoDirectWayError), line.ways(agent, "/d", "direct", line.WORTH, told.append):
        pass
