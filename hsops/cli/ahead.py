"""A head start for ``hsops deploy``: the login begins first, and what judges the command line loads beside it.

A login takes as long as all of hsops takes to load, and most of it is waiting. It begins on a quick look at the command
line and the inventory. When these turn out to be wrong, or to mean another host, it is dropped; nothing was asked then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hsops.core.events import Emit, Event
    from hsops.core.inventory import HostSpec
    from hsops.core.way import Way
    from hsops.remote.agent import Agent
    from hsops.remote.ssh import SshHost

VERBS = ("patch-inspect", "run-list")
"""Of the agent, to be loaded there meanwhile: what a deploy asks first."""

# Any other option ends the look: the command may mean something else then.
FLAGS = frozenset(
    ("--yes", "-y", "--json", "--check", "--diff", "--status", "--revert", "--force", "--verbose", "-v", "--no-color")
)
VALUED = frozenset(("--inventory", "-i", "--host", "--server", "-s", "--lock-wait", "--reason", "--out", "--parallel"))
SHORT = {"-i": "--inventory", "-s": "--server"}


@dataclass
class _Started:
    """A login under way.

    Args:
        way: where.
        host, agent: what holds it.
        emit: told what the agent tells, once it is known where that goes.
    """

    way: Way
    host: SshHost
    agent: Agent
    emit: list[Emit] = field(default_factory=list)


@dataclass
class _Interrupt:
    """Ctrl-C in the moment while a child is started, which could not be found yet: it waits for that."""

    held: bool = False
    came: bool = False


_started: list[_Started] = []  # of this process: one or none
_interrupt = _Interrupt()


def begin(words: Sequence[str]) -> None:
    """Log in to the host that a command line is about, if it is a deploy whose host is plain to see."""
    with suppress(Exception):  # whatever it is, it is told where the host is really needed
        _begin(words)


def _begin(words: Sequence[str]) -> None:
    given = look(words)
    if given is None:
        return
    from hsops.core.way import find

    way = find(Path(given.inventory), server=given.server, hosts=given.hosts)
    if way is None:
        return
    from hsops.remote.agent import Agent
    from hsops.remote.ssh import SshHost

    told: list[Emit] = []

    def tell(event: Event) -> None:
        for emit in told:
            emit(event)

    host = SshHost(way)
    _ = host.target  # asked for here, since it may take long and nothing is to be tidied up after it
    agent = Agent(host, python=way.python, state_dir=way.state_dir, emit=tell)
    _started.append(_Started(way, host, agent, told))
    with _holding():
        agent.begin(*VERBS)


def interrupted(_number: int, _frame: FrameType | None) -> None:
    """Ctrl-C while the libraries load: nothing was changed yet, so the login is killed, and this process ends.

    No exception: it could meet the interpreter where it prints it and goes on.
    """
    if _interrupt.held:
        _interrupt.came = True
        return
    try:
        for started in _started:
            started.host.abandon()
    finally:
        os._exit(130)


@contextmanager
def _holding() -> Iterator[None]:
    _interrupt.held = True
    try:
        yield
    finally:
        _interrupt.held = False
        if _interrupt.came:
            interrupted(0, None)


def take(spec: HostSpec, *, emit: Emit, lock_wait: float) -> Agent | None:
    """The agent on a host, if the login that began is the one to it. The caller closes its ``host``."""
    from hsops.core.way import Way

    if not _started or _started[0].way != Way.of(spec):
        return None
    found = _started.pop()
    found.emit.append(emit)
    found.agent.lock_wait = lock_wait
    return found.agent


def drop() -> None:
    """End a login that nobody took."""
    while _started:
        _started.pop().host.close()


@dataclass(frozen=True)
class Given:
    """What a command line says of the host."""

    inventory: str
    server: str
    hosts: tuple[str, ...]


def look(words: Sequence[str]) -> Given | None:
    """A deploy's command line; None for all else, and for a deploy that a quick look does not understand.

    What is given twice is not: which of two counts is for the parser to say, as are hosts on both sides of the command.
    """
    rest, plain, values, sides = iter(words), list[str](), dict[str, list[str]](), set[tuple[str, bool]]()
    for word in rest:
        if word in VALUED:
            name = SHORT.get(word, word)
            values.setdefault(name, []).append(next(rest, ""))
            sides.add((name, bool(plain)))
        elif not word.startswith("-"):
            plain.append(word)
        elif word not in FLAGS:
            return None
    twice = any(len(values.get(name, ())) > 1 for name in SHORT.values())
    if plain[:1] != ["deploy"] or twice or {("--host", False), ("--host", True)} <= sides:
        return None
    inventory, server = ("".join(values.get(name, ())) for name in SHORT.values())
    return Given(inventory or "inventory.yaml", server, tuple(values.get("--host", ())))
