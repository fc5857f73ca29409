"""Everything between a parsed command line and a feature: inventory, hosts, agents, output, exit codes."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from hsops.cli import ahead
from hsops.cli.options import Options
from hsops.core.errors import HsopsError, SpaceError, UsageError
from hsops.render.console import Console, Outcome

if TYPE_CHECKING:
    from hsops.core.errors import Fault
    from hsops.core.inventory import HostSpec, Inventory, ServerSpec
    from hsops.remote.agent import Agent
    from hsops.remote.host import Host
    from hsops.remote.lock import Lock


@dataclass
class Session:
    """One invocation: opens what is asked for, once, and closes it at the end."""

    options: Options
    console: Console
    stack: ExitStack
    _agents: dict[str, Agent] = field(default_factory=dict)

    @cached_property
    def inventory(self) -> Inventory:
        """The checked inventory."""
        from hsops.core.inventory_file import load

        return load(self.inventory_path)

    @property
    def inventory_path(self) -> Path:
        """The inventory's file."""
        return Path(self.options.inventory or "inventory.yaml")

    @cached_property
    def inventory_fault(self) -> Callable[[tuple[str, ...], str], Fault]:
        """Makes a fault of a path in the inventory, with its line."""
        from hsops.core.inventory_file import faults_in

        return faults_in(self.inventory_path)

    def server(self, name: str | None) -> ServerSpec:
        """The server ``name``, or the default one; on a host of ``--host`` and ``--group`` where those are given."""
        from hsops.core.inventory_file import find_server

        named = self.options.host or self.options.group
        return find_server(self.inventory, name, [host.name for host in self.hosts()] if named else ())

    def servers(self, names: Sequence[str], wanted: Callable[[ServerSpec], bool]) -> list[ServerSpec]:
        """The servers ``names``; else those ``wanted`` on the hosts of ``--host`` and ``--group``; else the default."""
        from hsops.core.inventory_file import find_servers

        named = self.options.host or self.options.group
        return find_servers(self.inventory, names, [host.name for host in self.hosts()] if named else (), wanted)

    def hosts(self) -> list[HostSpec]:
        """The hosts of ``--host`` and ``--group``, else the default server's host, else all."""
        from hsops.core.inventory_file import select_hosts

        return select_hosts(self.inventory, self.options.host, self.options.group)

    def agent(self, host: HostSpec | str) -> Agent:
        """The agent on a host; connects on first use."""
        spec = self.inventory.hosts[host] if isinstance(host, str) else host
        if spec.name not in self._agents:
            wait = 10.0 if self.options.lock_wait is None else self.options.lock_wait
            self._agents[spec.name] = self._begun(spec, wait) or self._new(spec, wait)
        return self._agents[spec.name]

    def beside(self) -> Session:
        """The same for another thread: with connections of its own, which are closed with those of this one."""
        other = Session(self.options, self.console, self.stack)
        other.__dict__["inventory"] = self.inventory  # read once: the file may be a pipe
        return other

    def lock(self, host: str) -> Lock:
        """The lock of a host, for one change: wait as long as ``--lock-wait`` says."""
        from hsops.remote.lock import Lock

        return Lock(self.agent(host), f"hsops {self.console.command}", reason=self.options.reason)

    def confirm(self, question: str) -> bool:
        """Ask, unless ``--yes``; without a terminal the answer is an error that names ``--yes``."""
        if self.options.yes:
            return True
        if not sys.stdin.isatty() or self.console.as_json:
            raise UsageError("there is nobody to ask", fix="add --yes to apply, or --check to only look")
        return typer.confirm(question, err=True)

    def _begun(self, spec: HostSpec, wait: float) -> Agent | None:
        """The one that the command began with, if it is on this host."""
        taken = ahead.take(spec, emit=self.console.emit, lock_wait=wait)
        if taken:
            self.stack.callback(taken.host.close)
        return taken

    def _new(self, spec: HostSpec, wait: float) -> Agent:
        from hsops.remote.agent import Agent

        host = self._connect(spec)
        return Agent(host, python=spec.python, state_dir=spec.state_dir, emit=self.console.emit, lock_wait=wait)

    def _connect(self, spec: HostSpec) -> Host:
        from hsops.remote.connect import connect

        host = connect(spec, accept_new=self.options.accept_new)
        self.stack.callback(host.close)
        return host


def run(ctx: typer.Context, command: str, body: Callable[[Session], Outcome]) -> NoReturn:
    """Run a command's body and exit with its code. The one place where errors become output and exit codes."""
    options = ctx.find_root().obj
    console = Console(command, as_json=options.json, color=not options.no_color)
    try:
        with ExitStack() as stack:
            code = console.outcome(body(Session(options, console, stack)))
    except HsopsError as error:
        code = console.error(error)
    except KeyboardInterrupt:
        code = console.interrupted()
    except Exception as error:
        if options.verbose:
            raise
        code = console.error(ours(error))
    raise typer.Exit(code)


def ours(error: Exception) -> HsopsError:
    """Any exception as one that can be shown."""
    if isinstance(error, HsopsError):
        return error
    return _refused(error) if isinstance(error, OSError) else _bug(error)


def _refused(error: OSError) -> HsopsError:
    """What this machine's system refused, a folder that may not be written for example: no fault of hsops' own."""
    what = f"{error.filename}: " if error.filename else ""
    kind = SpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else HsopsError
    return kind(f"{what}{error.strerror or error}", why=f"asked by {_place(error)}", fix="put that right, then again")


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"


def _bug(error: Exception) -> HsopsError:
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return HsopsError(
        f"a bug in hsops: {said} at {_place(error)}", fix="run it again with -v for the traceback, and report it"
    )
