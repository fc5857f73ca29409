"""``hsops init``: the files a user writes, to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hsops.cli.wiring import Session, run
from hsops.core.errors import ConfigError, HsopsError, UsageError
from hsops.render.console import Outcome

ADDRESS = "hsops init root@gpu-box, root@gpu-box:2222, or an alias of ~/.ssh/config"


def init(
    ctx: typer.Context,
    ssh: Annotated[
        str | None, typer.Argument(metavar="USER@HOST", help="A host to look at, as after ssh; without it, of the lab.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="What it is to serve: a path on the host, or a hub id.")
    ] = "",
    ssh_config: Annotated[
        str, typer.Option("--ssh-config", metavar="FILE", help="Read instead of ~/.ssh/config.")
    ] = "",
) -> None:
    """Write a first inventory.yaml and playbooks/extract.yaml here. Files that are there stay as they are."""

    def body(session: Session) -> Outcome:
        from hsops.core.beginnings import INVENTORY, PLAYBOOK, beginning

        if ssh is not None and not ssh.strip():
            raise UsageError(f"USER@HOST {ssh!r} names no host", fix=f"{ADDRESS}; or hsops init alone, for the lab's")
        if not ssh and (model or ssh_config):
            raise UsageError("--model and --ssh-config are of a host", fix="hsops init USER@HOST --model MODEL")
        path = session.inventory_path
        if path.exists():
            raise UsageError(
                f"{path} is there already", fix=f"move it away, or --inventory FILE for another {INVENTORY}"
            )
        text = _of_host(session, ssh, model, ssh_config) if ssh else beginning(INVENTORY)
        made = [_write(path, text), *([] if Path(PLAYBOOK).exists() else [_write(Path(PLAYBOOK), beginning(PLAYBOOK))])]
        then = "change what says CHANGE, then: hsops doctor" if "CHANGE" in text else "next: hsops doctor"
        lines = [*(f"wrote {name}" for name in made), then if ssh else "next: hsops lab up, then hsops doctor"]
        return Outcome({"written": made}, lines)

    run(ctx, "init", body)


def _of_host(session: Session, ssh: str, model: str, ssh_config: str) -> str:
    from hsops.core.beginnings import inventory_of, look, parse_look
    from hsops.core.texts import plain
    from hsops.core.way import Way
    from hsops.remote.ssh import SshHost

    try:
        way = Way("host", plain(ssh), plain(ssh_config) if ssh_config else None)
        plain(model)
    except ValueError as error:
        raise UsageError(str(error), fix="hsops init USER@HOST --model MODEL") from None
    host = SshHost(way, accept_new=session.options.accept_new)
    session.stack.callback(host.close)
    try:
        _ = host.target
    except ConfigError as error:
        raise _of_the_command_line(error, ssh, ssh_config) from None
    done = host.run(look())
    return inventory_of(ssh, parse_look(done.stdout.decode(errors="replace")), model=model, ssh_config=ssh_config)


def _of_the_command_line(error: ConfigError, ssh: str, ssh_config: str) -> HsopsError:
    """There is no inventory yet: what it would have been blamed for was typed."""
    fault = error.faults[0]
    if fault.where == "hosts.host.ssh":
        return UsageError(f"USER@HOST {fault.message}", fix=ADDRESS)
    if fault.where == "hosts.host.ssh_config":
        return UsageError(f"--ssh-config {ssh_config!r}: {fault.message}", fix=f"hsops init {ssh}, for ~/.ssh/config")
    return error


def _write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return str(path)
