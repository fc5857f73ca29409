"""A head start for ``hsops deploy``: the login begins first, and what judges the command line loads beside it.

A login takes as long as all of hsops takes to load, and most of it is waiting. It begins on a quick look at the command
line and the inventory. When these turn out to be wrong, or to mean another host, it is dropped; nothing was asked then.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
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


_started: list[_Started] = []  # of this process: one or none


def begin(words: Sequence[str]) -> None:
    """Log in to the host that a command line is about, if it is a deploy whose host is plain to see."""
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
    agent = Agent(host, python=way.python, state_dir=way.state_dir, emit=tell)
    _started.append(_Started(way, host, agent, told))
    with suppress(OSError):  # whatever it is, it is told where the host is really needed
        agent.begin(*VERBS)


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
    """A deploy's command line; None for all else, and for a deploy that a quick look does not understand."""
    rest, plain, values = iter(words), list[str](), dict[str, list[str]]()
    for word in rest:
        if word in VALUED:
            values.setdefault(word, []).append(next(rest, ""))
        elif not word.startswith("-"):
            plain.append(word)
        elif word not in FLAGS:
            return None
    if plain[:1] != ["deploy"]:
        return None
    return Given(
        inventory=_last(values, "--inventory", "-i") or "inventory.yaml",
        server=_last(values, "--server", "-s"),
        hosts=tuple(values.get("--host", ())),
    )


def _last(values: dict[str, list[str]], *names: str) -> str:
    return next((values[name][-1] for name in names if name in values), "")
