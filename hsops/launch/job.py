"""What a server that is a job asks of Slurm, and whether that can be meant. Pure."""

from __future__ import annotations

from typing import Any

from hsops.core.command import quote
from hsops.core.errors import HsopsError
from hsops.core.inventory import ServerSpec, SlurmSpec
from hsops.core.slurm import seconds_of
from hsops.core.yaml_file import suggest

_CPUS = '${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"}'  # srun does not inherit it since 22.05


def request(server: ServerSpec) -> dict[str, Any] | None:
    """What the agent's ``run-start`` hands to sbatch; None for a server that is no job."""
    if server.executor != "slurm":
        return None
    spec = server.slurm
    return {"bin": spec.bin or "", "script": script(spec), "options": options(spec)}


def script(spec: SlurmSpec) -> str:
    """The batch script: the run's supervisor as one task of one step. It needs no input but that it has one."""
    path = f"PATH={quote(spec.bin)}:$PATH\n" if spec.bin else ""
    step = f"exec srun --nodes=1 --ntasks=1 --mpi=none --kill-on-bad-exit=0 {_CPUS} {{command}}"
    return f'#!/bin/sh\n{path}{step} <<\'END\'\n{{"protocol": 1, "params": {{}}}}\nEND\n'


def options(spec: SlurmSpec) -> list[str]:
    """sbatch's; the inventory's own last, so that they win."""
    wanted = {"partition": spec.partition, "account": spec.account, "qos": spec.qos, "gres": spec.gres,
              "time": spec.time, "mem": spec.mem, "cpus-per-task": spec.cpus}  # fmt: skip
    fixed = ["--nodes=1", "--ntasks=1", "--chdir={run_dir}", "--output={run_dir}/job.log", "--open-mode=append"]
    fixed.append("--requeue" if spec.requeue else "--no-requeue")
    return [*fixed, *(f"--{name}={value}" for name, value in wanted.items() if value is not None), *spec.options]


def judge(server: ServerSpec, host: str, partitions: str, usual_s: float | None) -> None:
    """The same of what sinfo printed: ``name|default limit|longest limit`` a line, a ``*`` after the default's name.

    Raises:
        HsopsError: there is no such partition, or its time is too short.
    """
    spec = server.slurm
    rows = [line.split("|") for line in partitions.split() if line.count("|") == 2]
    known = {name.rstrip("*"): (usual, longest) for name, usual, longest in rows}
    wanted = spec.partition or next((name.rstrip("*") for name, *_ in rows if name.endswith("*")), "")
    if spec.partition and not all(name in known for name in spec.partition.split(",")):
        raise HsopsError(
            f"Slurm has no partition {spec.partition!r}{suggest(spec.partition, list(known))}",
            host=host,
            why=f"servers.{server.name}.slurm.partition names it; there are: {', '.join(known) or 'none'}",
            fix=f"correct servers.{server.name}.slurm.partition",
        )
    usual, longest = known.get(wanted, ("", ""))
    limit = _limit(spec.time) if spec.time else _limit(usual) or _limit(longest)
    if limit is not None and usual_s is not None and limit < usual_s:
        said = "slurm.time" if spec.time else f"the limit of partition {wanted}"
        raise HsopsError(
            f"{said} is {limit:.0f} s, and good runs of {server.name} took {usual_s:.0f} s to be healthy",
            host=host,
            why="the job would be ended before the server can answer",
            fix=f"raise servers.{server.name}.slurm.time",
        )


def _limit(text: str | None) -> float | None:
    try:
        return (seconds_of(text) or None) if text else None  # 0 is no end either
    except ValueError:
        return None
