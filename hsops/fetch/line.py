"""One stream of files from the host, and the ways to open one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from hsops.core.deadline import Deadline
from hsops.core.errors import HsopsError, RemoteError, UnreachableError
from hsops.core.events import Emit, Note
from hsops.core.inventory import Channel
from hsops.core.parallel import cores
from hsops.fetch.pieces import Piece
from hsops.fetch.wire import LostStreamError
from hsops.remote.agent import Agent
from hsops.remote.direct import FIRST_S, Connection, Direct, NoDirectWayError, opened
from hsops.remote.host import FAR_S

BULK = Deadline(connect=15.0, idle=30.0, total=None)
WORTH = 16 << 20  # bytes from which on a way beside SSH is looked for: a firewall may cost two seconds
MANY = 8  # cores at both ends from which on ssh brings more: each stream has processes of its own, TLS is ours


class Line(Protocol):
    """A stream that answers requests, in order."""

    def ask(self, batch: Sequence[Piece], sums: str, *, always: bool) -> None:
        """One request more. Nothing is asked before the stream has begun.

        Args:
            batch: what is wanted.
            sums: the kind of checksum that is wanted of each piece whose content nothing else proves.
            always: of the others too.

        Raises:
            UnreachableError: the stream is lost.
        """
        ...

    def read(self, want: int) -> bytes | memoryview:
        """What has come; nothing at the end. Valid until the next read."""
        ...

    def why(self) -> str:
        """After the end: what the other side had to say about it."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class SshLine:
    """Through a child process, OpenSSH's client; on this machine the agent itself."""

    def __init__(self, agent: Agent, source: str) -> None:
        self._host = agent.host.name
        command, stdin = agent.request("dumps-send", folder=source)
        self._stream = agent.host.bulk(command, stdin=stdin + b"\n", deadline=BULK, talk=True)
        self._pieces = iter(self._stream)

    def ask(self, batch: Sequence[Piece], sums: str, *, always: bool) -> None:
        try:
            self._stream.send(_request(batch, sums, always=always))
        except RemoteError as error:  # it ended before this request: what it had to say is read like any other end
            raise LostStreamError(error.message, host=self._host) from None

    def read(self, want: int) -> bytes:  # noqa: ARG002 - a pipe gives what it has
        try:
            return next(self._pieces, b"")
        except RemoteError as error:
            if self._stream.started:
                raise
            raise LostStreamError(error.message, host=self._host) from None  # cut before it began: others did begin

    def why(self) -> str:
        said = self._stream.finish().stderr.decode(errors="replace").strip().splitlines()
        return said[-1] if said else ""

    def close(self) -> None:
        self._stream.__exit__(None, None, None)


class DirectLine:
    """A TLS connection beside SSH."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.read, self.close = connection.read, connection.close

    def ask(self, batch: Sequence[Piece], sums: str, *, always: bool) -> None:
        self._connection.send(_request(batch, sums, always=always))

    def why(self) -> str:
        return ""


class Ways:
    """Opens lines, for several threads: beside SSH as long as that works, else through it.

    Args:
        agent, source: whose files.
        direct: the door beside SSH, if there is one.
        first: a connection through it that is there already.
        only: never through SSH.
    """

    def __init__(
        self,
        agent: Agent,
        source: str,
        direct: Direct | None = None,
        first: Connection | None = None,
        *,
        only: bool = False,
    ) -> None:
        self._agent, self._source, self._direct, self._only = agent, source, direct, only
        self._lock, self._first = threading.Lock(), first

    @property
    def far(self) -> bool:
        """A round trip takes long: one stream brings little, however fast the machines are."""
        return self._agent.host.round_trip >= FAR_S

    @property
    def name(self) -> str:
        """``direct`` or ``ssh``: how the next line is opened."""
        return "direct" if self._direct else "ssh"

    def open(self, note: Callable[[Note], None]) -> Line:
        """A new line.

        Args:
            note: told once, when there is no way beside SSH any more; from the caller's thread.

        Raises:
            UnreachableError: the host is not reached.
            NoDirectWayError: not beside SSH, and no other way is wanted.
        """
        with self._lock:
            direct, first, self._first = self._direct, self._first, None
        if direct is not None:
            try:
                return DirectLine(first or direct.connect())
            except NoDirectWayError as error:
                if self._only:
                    raise
                self.shut(error, note)
        return SshLine(self._agent, self._source)

    def shut(self, error: UnreachableError, note: Callable[[Note], None]) -> None:
        """No more lines beside SSH, unless no other way is wanted: connections through there are always lost."""
        if self._only:
            return
        with self._lock:
            known, self._direct = self._direct, None
        if known:
            text = f"the direct connection does not hold ({error.message}); the rest comes over ssh"
            note(Note(text, self._agent.host.name, "warn"))


@contextmanager
def ways(agent: Agent, source: str, way: Channel, size: int | None, emit: Emit) -> Iterator[Ways]:
    """How lines are opened in one pull; says which way it is.

    Args:
        agent, source: whose files.
        way: what is wanted; ``auto`` tries beside SSH for two seconds, where it is worth it: one process of Python is
            at the other end of all direct connections, and on many cores (``MANY``) ssh's own processes bring more.
        size: bytes that are to come; None: not known yet.
        emit: told the way.

    Raises:
        NoDirectWayError: ``direct`` is wanted, and cannot be.
    """
    name = agent.host.name
    few = size is not None and size < WORTH
    if way == "ssh" or (way == "auto" and (few or agent.host.via or agent.host.address is None)):
        yield Ways(agent, source)
        return
    with _tried(agent, source, way) as (direct, first, why):
        if direct:
            emit(Note(f"the bytes come over TLS beside SSH, from {direct.place}", name))
        elif way == "direct":
            fix = "--channel auto falls back to ssh; or open the host's ports for this machine"
            raise NoDirectWayError(f"there is no direct connection: {why.removeprefix(_SLOWER)}", host=name, fix=fix)
        else:
            emit(Note(f"the bytes come over ssh{why}", name))
        yield Ways(agent, source, direct, first, only=way == "direct")


_SLOWER = "; a direct connection would be faster, but: "


@contextmanager
def _tried(agent: Agent, source: str, way: Channel) -> Iterator[tuple[Direct | None, Connection | None, str]]:
    """The door and a connection through it, if one can be made and is wanted, else why not."""
    entering = opened(agent, source)
    try:
        direct = entering.__enter__()
    except (NoDirectWayError, RemoteError) as error:  # if the host is not there at all, a line over ssh tells
        yield None, None, _SLOWER + error.message
        return
    first: Connection | None = None
    try:
        both = min(cores(), direct.place.cores)
        if way == "auto" and both >= MANY and agent.host.round_trip < FAR_S:
            yield None, None, f": with {both} cores at both ends its processes bring more than one process's TLS"
            return
        try:
            first = direct.connect(FIRST_S if way == "auto" else BULK.connect)
        except NoDirectWayError as error:
            yield None, None, _SLOWER + error.message
        else:
            yield direct, first, ""
    finally:
        if first:
            first.close()
        with suppress(HsopsError):  # of a link that died meanwhile
            entering.__exit__(None, None, None)


def _request(batch: Sequence[Piece], sums: str, *, always: bool) -> bytes:
    files = [
        [p.transfer.file.name, p.at, p.end, p.transfer.file.bytes, p.start if always or needs_sum(p) else -1]
        for p in batch
    ]
    return json.dumps({"files": files, "sum": sums}, separators=(",", ":")).encode() + b"\n"


def needs_sum(piece: Piece) -> bool:
    """Only the sender can tell what it must be; of a whole dump the manifest tells."""
    return not (piece.alone and piece.transfer.file.checksum)
