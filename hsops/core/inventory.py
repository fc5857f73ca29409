"""inventory.yaml: hosts, groups, defaults, servers, patches.

These frozen models are both the schema of the file and the values that features work on.
``hsops.core.inventory_file`` reads the file and reports every fault at once with its place.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from hsops.core.names import Flag, Model, Name, Plain, RemotePath, SbatchOption, SlurmTime, Variable, Word
from hsops.core.patches import HsDumpPatch, Patch, PatchSpec
from hsops.core.prefix import Prefix
from hsops.core.texts import NAME
from hsops.core.way import KEEPALIVE, KEEPALIVE_BOUNDS, STATE_DIR

__all__ = ["NAME", "Channel", "HostSpec", "HsDumpPatch", "Inventory", "PatchSpec", "Scalar", "ServerSpec", "SlurmSpec"]

Scalar = bool | int | float | str
Channel = Literal["auto", "direct", "ssh"]
# YAML has lists only; lax here means no more than that a list may fill a tuple.
Names = Annotated[tuple[Name, ...], Field(strict=False)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class HostSpec(_Model):
    """A machine reached over SSH, or this one (``ssh: local``)."""

    name: Name
    ssh: Plain = Field(description="user@host[:port], an alias of ~/.ssh/config, or 'local'")
    ssh_config: Plain | None = Field(None, description="an OpenSSH client file to read instead of ~/.ssh/config")
    via: Prefix = Field(
        (), description="words before every command on the host, such as docker exec -i NAME: then all else is in there"
    )
    keepalive: Annotated[float, Field(ge=KEEPALIVE_BOUNDS[0], le=KEEPALIVE_BOUNDS[1])] = Field(
        KEEPALIVE, description="seconds between questions to the host; three without an answer, and the link is lost"
    )
    python: RemotePath = Field(description="the interpreter that runs SGLang on the host")
    state_dir: RemotePath = Field(STATE_DIR, description="where hsops keeps runs, patches and the agent")
    channel: Channel = Field("auto", description="how fetch's bytes come: direct (TLS beside SSH), ssh, or what works")
    dumps: RemotePath = Field("/dev/shm/sglang_hs", description="where ranks write hidden states")  # noqa: S108


class RestartSpec(_Model):
    """When a server that failed is started again by its supervisor on the host."""

    max: Annotated[int, Field(ge=1, le=1000)] = Field(3, description="restarts within the window")
    window: Annotated[float, Field(gt=0)] = Field(600.0, description="seconds")
    backoff: Annotated[float, Field(ge=0, le=300)] = Field(
        5.0, description="seconds before a restart, twice as long before each further one within the window"
    )


class SlurmSpec(_Model):
    """What a server's job asks of Slurm; what is left out Slurm decides."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    gres: Word | None = Field(None, description="such as gpu:8")
    time: SlurmTime | None = Field(None, description="the job's limit, such as '2-00:00:00', in quotes")
    mem: Word | None = Field(None, description="memory a node, such as 900G")
    cpus: Annotated[int, Field(ge=1)] | None = Field(None, description="processors for the server")
    options: Annotated[tuple[SbatchOption, ...], Field(strict=False)] = Field(
        (), description="more of sbatch's options, such as --constraint=h200"
    )
    requeue: bool = Field(True, description="Slurm may start it again after a preemption or a node's failure")
    bin: RemotePath | None = Field(None, description="the folder of sbatch and the others, when not on the PATH")


class ServerSpec(_Model):
    """How one SGLang server is launched."""

    name: Name
    host: Name = Field(description="where it runs; of several nodes the first, which answers")
    nodes: Names = Field(
        (),
        description="the hosts of one server over several: a list, a group, or how many of the group that host names",
    )
    model: Model = Field(description="a path on the host, or a hub id")
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    port: Annotated[int, Field(ge=1, le=65535)] | Literal["auto"] = 30000
    nccl: str | None = Field(
        None, description="an NCCL profile: pcie-p2p, pcie-p2p-phb, pcie-dram, nvlink-nvls, nvlink, debug"
    )
    env: dict[Variable, str] = Field(default_factory=dict, description="added to, and stronger than, the profile")
    args: dict[Flag, Scalar | list[Scalar]] = Field(
        default_factory=dict, description="SGLang's flags without the dashes; true means the bare flag"
    )
    patches: Names = ()
    restart: RestartSpec | None = Field(None, description="start it again when it fails after it has served")
    executor: Literal["host", "slurm"] = Field(
        "host", description="host: on its host; slurm: as a job of Slurm, and its host is a login node"
    )
    slurm: SlurmSpec = Field(
        default_factory=lambda: SlurmSpec.model_validate({}), description="of the job, with executor: slurm"
    )

    @property
    def hosts(self) -> tuple[str, ...]:
        """All that it runs on, in the order of their node ranks."""
        return self.nodes or (self.host,)


class Inventory(_Model):
    """The whole file, checked, with the defaults filled in."""

    hosts: dict[Name, HostSpec] = Field(default_factory=dict)
    groups: dict[Name, Names] = Field(default_factory=dict)
    servers: dict[Name, ServerSpec] = Field(default_factory=dict)
    patches: dict[Name, Patch] = Field(default_factory=dict)
    default: Name | None = Field(None, description="the server meant when a command names none")
