"""What a server that is a job asks of Slurm, and whether that can be meant. Pure."""

from __future__ import annotations

from typing import Any

from hsops.core.command import quote
from hsops.core.errors import HsopsError
from hsops.core.inventory import ServerSpec, SlurmSpec
from hsops.core.partitions import objections, parse_partitions

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
    """What sinfo printed must have such a partition, with time enough. The rest Slurm says itself, and doctor before.

    Raises:
        HsopsError: there is no such partition, or its time is too short.
    """
    for one in objections(server, parse_partitions(partitions), usual_s):
        if one.kind in ("unknown", "too-short"):
            raise HsopsError(one.what, host=host, why=one.why, fix=one.fix)
