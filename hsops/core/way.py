"""The way to a host: the few words of an inventory that a login needs, before all of the file has been judged.

Judging it takes longer to load than a login takes to begin. So a login may begin on what ``find`` takes for the way;
it is used only when the checked inventory says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsops.core.texts import a_name, a_remote_path, plain

if TYPE_CHECKING:
    from hsops.core.inventory import HostSpec

STATE_DIR = "~/.hsops"
KEEPALIVE = 5.0
KEEPALIVE_BOUNDS = (0.1, 600.0)


@dataclass(frozen=True, slots=True)
class Way:
    """How a host is reached, and what is started there. Fields: as of ``HostSpec``."""

    name: str
    ssh: str
    ssh_config: str | None = None
    via: tuple[str, ...] = ()
    python: str = ""
    state_dir: str = STATE_DIR
    keepalive: float = KEEPALIVE

    @classmethod
    def of(cls, spec: HostSpec) -> Way:
        """That of a checked host."""
        told = (spec.name, spec.ssh, spec.ssh_config, spec.via, spec.python, spec.state_dir, spec.keepalive)
        return cls(*told)


def find(path: Path, *, server: str = "", hosts: Sequence[str] = ()) -> Way | None:
    """The way to the first host that is probably meant: of ``hosts``, else that of the server, else of the default one.

    None where the file is not as it should be, or the host has an exec prefix or is this machine. A pipe is left alone:
    what a look takes from it is gone for who judges it. So is ``/dev/stdin``: where two readers may share one place.
    """
    import yaml

    with suppress(Exception):  # PyYAML raises anything at all, and whatever it is, the file's reader has words for it
        if path.is_file() and not str(path).startswith("/dev/"):
            text = path.read_text(encoding="utf-8")
            value = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
            return _way(value, server, hosts)
    return None


def _way(value: dict[str, Any], server: str, hosts: Sequence[str]) -> Way | None:
    servers = value.get("servers") or {}
    wanted = server or value.get("default") or (next(iter(servers)) if len(servers) == 1 else "")
    name = a_name(hosts[0] if hosts and not server else servers[wanted]["host"])
    given = {**((value.get("defaults") or {}).get("host") or {}), **value["hosts"][name]}
    if given.get("via") or given["ssh"] == "local":
        return None
    config, keepalive = given.get("ssh_config"), float(given.get("keepalive", KEEPALIVE))
    if not KEEPALIVE_BOUNDS[0] <= keepalive <= KEEPALIVE_BOUNDS[1]:
        return None
    return Way(
        name,
        plain(given["ssh"]),
        None if config is None else plain(config),
        python=a_remote_path(given["python"]),
        state_dir=a_remote_path(given.get("state_dir", STATE_DIR)),
        keepalive=keepalive,
    )
