"""``hsops diagnose``: why does it not answer?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from hsops.cli import diagnose_nodes
from hsops.cli.wiring import Session, run
from hsops.core.errors import UsageError
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.core.events import Emit
    from hsops.core.runs import Run
    from hsops.diagnose.evidence import Evidence
    from hsops.remote.agent import Agent


def diagnose(
    ctx: typer.Context,
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Which server; without it the default one.")] = "",
    *,
    run_id: Annotated[str, typer.Option("--run", metavar="ID", help="A run of it; else the live or newest one.")] = "",
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge by a log here, - for a pipe; no host, no inventory.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1024, help="With --log: ranks, when it does not say.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the evidence, without secrets, in one file.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(metavar="FILE", help="Judge by evidence kept earlier.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the diagnosis as one page, too.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Wait until a healthy server shows no sign of life, then diagnose it.")
    ] = False,
    silence: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="With --watch: so long without a token or a line.")
    ] = 30.0,
) -> None:
    """Look at a server from all sides for three seconds and say what is the matter, with the evidence."""

    keep = Keep(save, html)

    def body(session: Session) -> Outcome:
        keep.check(log or bundle)
        if watch and (log or bundle):
            raise UsageError("--watch is for a server that runs; --log and --bundle are not")
        if watch:
            return _watch(session, server or None, keep, run_id=run_id, silence_s=silence)
        if log and bundle:
            raise UsageError("--log and --bundle are two sources; name one")
        if log:
            return _of_log(log, tp, keep, session.console.emit)
        if bundle:
            return _of_bundle(bundle, keep)
        return live(session, server or None, keep, run_id=run_id)

    run(ctx, "diagnose", body)


@dataclass(frozen=True, slots=True)
class Keep:
    """Files to write beside the answer: a bundle of the evidence, the page."""

    bundle: Path | None = None
    page: Path | None = None

    def check(self, source: Path | None = None) -> None:
        """Before a look, which may come after hours of ``--watch``. To a pipe or a device they may go.

        Args:
            source: a file that is read, which they may not replace.

        Raises:
            UsageError: one cannot be written, is what is read, or both are one file.
        """
        from hsops.core.files import output_file

        found = [
            output_file(path, option)
            for option, path in (("--save", self.bundle), ("--html", self.page))
            if path and (path.is_file() or not path.exists())
        ]
        if len(found) > len(set(found)):
            raise UsageError(f"--save and --html are one file: {found[0]}", fix="name two")
        if source and any(path.exists() and path.samefile(source) for path in found if source.exists()):
            raise UsageError(f"{source} is read, so it is not written over", fix="name another file to write")


NOTHING = Keep()


def live(
    session: Session,
    server: str | None,
    keep: Keep = NOTHING,
    *,
    run_id: str = "",
    unmoved_s: float = 0.0,
    allowed_s: float = 0.0,
) -> Outcome:
    """The command's body on a host, for playbooks and launch too. ``unmoved_s``, ``allowed_s``: as in ``Evidence``."""
    from hsops.diagnose.bundle import pack
    from hsops.diagnose.live import probe
    from hsops.diagnose.reading import from_probe
    from hsops.remote.dumps import folder_of

    spec = session.server(server)
    if spec.nodes:
        return diagnose_nodes.live(session, spec, keep, run_id=run_id, unmoved_s=unmoved_s, allowed_s=allowed_s)
    host = session.inventory.hosts[spec.host]
    agent = session.agent(spec.host)
    found = _run(agent, spec.name, run_id)
    port = spec.port if isinstance(spec.port, int) else None
    raw = probe(
        agent, found, server=spec.name, port=port, tp=spec.tp, dumps=folder_of(host, spec), emit=session.console.emit
    )
    if keep.bundle:
        vouched = {"unmoved_s": unmoved_s, "allowed_s": allowed_s}
        keep.bundle.write_bytes(pack(raw, run=found, host=host.name, tp=spec.tp, **vouched))
    seen = from_probe(raw, host=host.name, run=found, tp=spec.tp, unmoved_s=unmoved_s)
    return outcome(replace(seen, allowed_s=allowed_s), keep, server=spec.name)


def _watch(session: Session, server: str | None, keep: Keep, *, run_id: str, silence_s: float) -> Outcome:
    """Wait, look, and wait again where what was seen moves."""
    from hsops.core.events import Note
    from hsops.diagnose.watch import wait_for_silence

    spec = session.server(server)
    while True:
        agent = session.agent(spec.host)
        found = _run(agent, spec.name, run_id)
        if found is None or not found.alive:
            raise UsageError(f"no run of {spec.name} lives", fix="hsops launch --wait-healthy; hsops status shows all")
        wait_for_silence(agent.at(found), found, silence_s=silence_s, emit=session.console.emit)
        looked = live(session, spec.name, keep, run_id=found.id)
        if looked.exit_code:
            return looked
        verdict = looked.data["verdict"]
        session.console.emit(Note(f"{verdict['class']}: {verdict['summary']}; the watch goes on", agent.host.name))


def _run(agent: Agent, server: str, run_id: str) -> Run | None:
    from hsops.remote.runs import list_runs

    return chosen_of(list_runs(agent, server), server, run_id)


def chosen_of(runs: Sequence[Run], server: str, run_id: str) -> Run | None:
    """Of a server's runs, newest first: the one named, else the one that lives, else the newest."""
    if run_id:
        chosen = next((r for r in runs if r.id == run_id), None)
        if chosen is None:
            known = ", ".join(r.id for r in runs[:5]) or "none"
            raise UsageError(f"{server} has no run {run_id!r}", fix=f"its newest runs: {known}; hsops status shows all")
        return chosen
    return next((r for r in runs if r.alive), runs[0] if runs else None)


def _of_log(path: Path, tp: int | None, keep: Keep, emit: Emit) -> Outcome:
    from hsops.diagnose.bundle import pack_log
    from hsops.diagnose.log_file import digest
    from hsops.diagnose.reading import from_log

    try:
        with _open(path, "--log") as file:
            size = path.stat().st_size if str(path) != "-" else 0
            found = digest(file, size=size, emit=emit)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    name = str(path) if str(path) != "-" else "standard input"
    if keep.bundle:
        keep.bundle.write_bytes(pack_log(found.data, path=name, lines=found.lines, tp=tp))
    return outcome(from_log(name, found.data, tp=tp, lines=found.lines), keep)


def _open(path: Path, option: str) -> AbstractContextManager[BinaryIO]:
    from hsops.core.files import open_file

    if str(path) == "-":
        return nullcontext(sys.stdin.buffer)
    return open_file(path, fix=f"{option} - < {path} reads a pipe" if path.is_fifo() else f"{option} FILE names a file")


def _of_bundle(path: Path, keep: Keep) -> Outcome:
    from hsops.diagnose.bundle import read

    if keep.bundle:
        raise UsageError("--save keeps a look at a host or a log; a bundle is kept already", fix="cp FILE copies it")
    try:
        with _open(path, "--bundle") as file:
            seen = read(file, name=str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return outcome(seen, keep)


def outcome(evidence: Evidence, keep: Keep, *, server: str | None = None) -> Outcome:
    """The verdict, with what is to be kept of it."""
    from hsops import __version__
    from hsops.diagnose.judge import judge
    from hsops.render.diagnose import lines
    from hsops.render.report import page

    verdict = judge(evidence)
    took_s = evidence.took_s if evidence.live else None
    if keep.page:
        keep.page.write_text(page(verdict, evidence, server=server or "", version=__version__), encoding="utf-8")
    run = evidence.run.id if evidence.run else None
    data = {"verdict": verdict.as_json(), "server": server, "run": run, "took_s": took_s}
    return Outcome(data, list(lines(verdict, took_s)), verdict.exit_code)
