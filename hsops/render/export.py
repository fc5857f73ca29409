"""What an export did, for people and machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from hsops.core.dump_check import Finding
from hsops.core.units import counted, size
from hsops.export.export import CONFIG, Exported
from hsops.render.console import Outcome

SHOWN = 20


def outcome(exported: Exported, *, folder: str, to: str) -> Outcome:
    """Exit 1 when there is no data set."""
    errors = tuple({"type": "Finding", **asdict(f), "message": f"{f.file}: {f.reason}"} for f in exported.findings)
    data = {"folder": folder, "to": to, **asdict(exported)}
    said = (
        f"{counted(exported.samples, 'sample')} · in {to} for {exported.format}"
        if exported.complete
        else f"no data set in {to}"
    )
    return Outcome(data, list(lines(exported, to=to)), 0 if exported.complete else 1, errors, said)


def lines(exported: Exported, *, to: str) -> Iterator[str]:
    """The report."""
    yield from _faults(exported.findings or exported.left_out)
    total = f"{counted(exported.samples, 'sample')} · {exported.tokens:,} tokens · {size(exported.bytes)}"
    if not exported.complete:
        yield f"no data set in {to}: {counted(len(exported.findings), 'fault')}; {total} are there for the next run"
        yield "next: hsops fetch brings what is damaged here again; --partial exports the rest"
        return
    ways = ", ".join(
        f"{count:,} by {way}" if way != "written" else f"{count:,} written" for way, count in exported.made.items()
    )
    did = f"{ways} in {exported.seconds:.1f} s" if exported.made else "nothing to do"
    out = f" · {counted(len(exported.left_out), 'fault')} left out" if exported.left_out else ""
    yield f"{total} · in {to} for {exported.format} · {did}{out}"
    if exported.unlearned:
        yield f"{counted(exported.unlearned, 'sample')} with a loss_mask of zeros: nothing is learned there"
    yield from _layers(exported)


def _layers(exported: Exported) -> Iterator[str]:
    found = exported.layers
    yield f"layers: boundaries {list(found.boundaries)}, which are the outputs of layers {list(found.output_layers)}"
    if found.engine:
        yield f"drafter: eagle_aux_hidden_state_layer_ids {list(found.ids)} for {found.engine} ({CONFIG})"
    else:
        yield f"drafter: eagle_aux_hidden_state_layer_ids {_by_engine(found.by_engine)}; --engine writes them"


def _by_engine(told: dict[str, list[int] | None]) -> str:
    return ", ".join(f"{ids if ids is not None else 'none'} for {engine}" for engine, ids in told.items())


def _faults(findings: Sequence[Finding]) -> Iterator[str]:
    shown = findings[:SHOWN]
    widths = (max((len(f.file) for f in shown), default=0), max((len(f.code) for f in shown), default=0))
    for finding in shown:
        yield f"{finding.file:<{widths[0]}}  {finding.code:<{widths[1]}}  {finding.reason}"
    if len(findings) > SHOWN:
        yield f"and {len(findings) - SHOWN:,} more (--json has all)"
