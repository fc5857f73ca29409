"""``hsops diagnose`` of a server over several hosts: looked at on all of them at once, judged as one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hsops.cli.wiring import Session
from hsops.render.console import Outcome

if TYPE_CHECKING:
    from hsops.cli.diagnose import Keep
    from hsops.core.inventory import ServerSpec


def live(session: Session, spec: ServerSpec, keep: Keep, *, run_id: str, unmoved_s: float, allowed_s: float) -> Outcome:
    """As ``diagnose.live``. A host that cannot be asked is part of the evidence."""
    from hsops.cli.diagnose import chosen_of, outcome
    from hsops.cli.rollout import ask
    from hsops.cli.several import parts_of
    from hsops.core.nodes import together
    from hsops.diagnose.bundle import pack_nodes
    from hsops.diagnose.live import probe
    from hsops.diagnose.reading import from_nodes
    from hsops.remote.dumps import folder_of

    parts, failed = parts_of(session, spec)
    found = chosen_of(together(parts), spec.name, run_id)
    runs = {host: next((one for one in some if found and one.id == found.id), None) for host, some in parts.items()}
    port = spec.port if isinstance(spec.port, int) else None
    calls = {
        host: partial(
            probe,
            session.agent(host),
            run,
            server=spec.name,
            port=port,
            tp=spec.tp,
            dumps=folder_of(session.inventory.hosts[host], spec),
            emit=session.console.emit,
        )
        for host, run in runs.items()
    }
    raws, silent = ask(session, calls, doing="looking at the ranks on")
    if not raws:
        raise next(iter(silent.values()))
    lost = {host: error.message for host, error in {**failed, **silent}.items()}
    seen = {host: (raw, runs[host]) for host, raw in raws.items()}
    if keep.bundle:
        vouched = {"unmoved_s": unmoved_s, "allowed_s": allowed_s}
        keep.bundle.write_bytes(pack_nodes(seen, lost, tp=spec.tp, **vouched))
    evidence = from_nodes(seen, lost, tp=spec.tp, unmoved_s=unmoved_s)
    return outcome(replace(evidence, allowed_s=allowed_s), keep, server=spec.name)
