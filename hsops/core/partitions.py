"""Slurm's partitions as sinfo tells of them, and what is wrong with what a server's job asks of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hsops.core.inventory import ServerSpec, SlurmSpec
from hsops.core.slurm import seconds_of
from hsops.core.yaml_file import suggest

SINFO = ("-a", "-h", "-o", "%P|%a|%L|%l|%F")
"""What sinfo is asked with: also hidden partitions; of nodes the allocated, idle, other ones and all."""
Kind = Literal["unknown", "too-short", "not-up", "no-node", "no-default", "too-long"]


@dataclass(frozen=True, slots=True)
class Partition:
    """A queue.

    Args:
        name: as sbatch takes it.
        default: jobs that name none go there.
        state: ``up``, ``down``, ``drain`` or ``inact``.
        usual, longest: its default and its longest time limit, as Slurm prints them.
        gone: of its ``nodes``, those that are down, drained or failing.
    """

    name: str
    default: bool
    state: str
    usual: str
    longest: str
    gone: str
    nodes: str


@dataclass(frozen=True, slots=True)
class Objection:
    """What is wrong, why that matters, what to do. ``unknown`` and ``too-short`` cannot be meant."""

    kind: Kind
    what: str
    why: str
    fix: str


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Of what sinfo prints, asked with ``SINFO``; a line that is not of it is left out."""
    rows = [words for line in text.split() if len(words := line.split("|")) == 5 and words[4].count("/") == 3]
    return tuple(
        Partition(name.rstrip("*"), name.endswith("*"), state, usual, longest, *nodes.split("/")[2:])
        for name, state, usual, longest, nodes in rows
    )


def objections(server: ServerSpec, partitions: Sequence[Partition], usual_s: float | None) -> Iterator[Objection]:
    """Of a server that is a job. What its own ``options`` ask of sbatch wins, and is judged by Slurm alone.

    Args:
        usual_s: from the launch to healthy in good runs; None when unknown.
    """
    spec, field = server.slurm, f"servers.{server.name}.slurm"
    if _says(spec, "-p", "--partition"):
        return
    known = {one.name: one for one in partitions}
    names = spec.partition.split(",") if spec.partition else [one.name for one in partitions if one.default]
    if spec.partition and not set(names) <= set(known):
        yield Objection(
            "unknown",
            f"Slurm has no partition {spec.partition!r}{suggest(spec.partition, list(known))}",
            f"{field}.partition names it; there are: {', '.join(known) or 'none'}",
            f"correct {field}.partition",
        )
    elif not names:
        why = f"sbatch takes no job without one; there are: {', '.join(known) or 'none'}"
        yield Objection("no-default", "Slurm has no default partition", why, f"name one in {field}.partition")
    else:
        yield from _of_state([known[name] for name in names])
        yield from _of_time(server, [known[name] for name in names], usual_s)


def _of_state(wanted: Sequence[Partition]) -> Iterator[Objection]:
    named = f"partition {','.join(one.name for one in wanted)}"
    up = [one for one in wanted if one.state == "up"]
    if not up:
        why = "sbatch takes no job for it" if wanted[0].state in ("drain", "inact") else "a job there waits"
        why += " until whoever runs the cluster sets it up"
        yield Objection("not-up", f"{named} is {wanted[0].state}", why, f"scontrol show {named}")
    elif all(one.gone == one.nodes for one in up):
        said = f"{named} has no node that can be had: {', '.join(one.nodes for one in up)} down, drained or failing"
        yield Objection("no-node", said, "a job there waits until one is back", "sinfo -R on the login node says why")


def _of_time(server: ServerSpec, wanted: Sequence[Partition], usual_s: float | None) -> Iterator[Objection]:
    spec, fix = server.slurm, f"servers.{server.name}.slurm.time"
    if _says(spec, "-t", "--time"):
        return
    longest = [_limit(one.longest) for one in wanted]
    limits = [_limit(one.usual) or _limit(one.longest) for one in wanted]
    limit = _limit(spec.time) if spec.time else _most(limits)
    if limit is not None and usual_s is not None and limit < usual_s:
        said = "slurm.time" if spec.time else f"the limit of partition {','.join(one.name for one in wanted)}"
        what = f"{said} is {limit:.0f} s, and good runs of {server.name} took {usual_s:.0f} s to be healthy"
        yield Objection("too-short", what, "the job would be ended before the server can answer", f"raise {fix}")
    most = _most(longest)
    if spec.time and most is not None and (limit is None or limit > most):
        said = ", ".join(f"{one.name} ends a job after {one.longest}" for one in wanted)
        why = "Slurm refuses such a job, or lets it wait with the reason PartitionTimeLimit"
        yield Objection("too-long", f"slurm.time is {spec.time}, and partition {said}", why, f"lower {fix}")


def _most(limits: Sequence[float | None]) -> float | None:
    return None if None in limits else max(one for one in limits if one is not None)


def _says(spec: SlurmSpec, short: str, long: str) -> bool:
    return any(one == long or one.startswith((f"{long}=", short)) for one in spec.options)


def _limit(text: str | None) -> float | None:
    """In seconds; None: no end."""
    try:
        return (seconds_of(text) or None) if text else None  # 0 is no end either
    except ValueError:
        return None
