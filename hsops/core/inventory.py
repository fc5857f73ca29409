"""inventory.yaml: hosts, groups, defaults, servers, patches.

These frozen models are both the schema of the file and the values that features work on.
``hsops.core.inventory_file`` reads the file and reports every fault at once with its place.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FLAG = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _a_name(value: str) -> str:
    if not NAME.match(value):
        raise ValueError(f"{value!r} is not a name: letters, digits, '.', '_', '-', at most 63")
    return value


def _plain(value: str) -> str:
    """Text that goes into a command line, a file or a URL: a control character there is never meant."""
    if bad := _CONTROL.search(value):
        raise ValueError(f"{value!r} has the control character {bad[0]!r}")
    return value


def _a_remote_path(value: str) -> str:
    if not value.startswith(("/", "~/")):
        raise ValueError(f"{value!r} is not an absolute path on the host (start with / or ~/)")
    return _plain(value)


def _a_model(value: str) -> str:
    if not value.strip() or value.startswith("-"):
        raise ValueError(f"{value!r} is neither a path on the host nor a hub id")
    return _plain(value)


def _a_variable(value: str) -> str:
    if not _VARIABLE.match(value):
        raise ValueError(f"{value!r} is not the name of an environment variable")
    return value


def _a_flag(value: str) -> str:
    if not _FLAG.match(value):
        raise ValueError(f"{value!r} is not a flag: letters, digits, '.', '_' and '-'")
    return value


Name = Annotated[str, AfterValidator(_a_name)]
RemotePath = Annotated[str, AfterValidator(_a_remote_path)]
Plain = Annotated[str, AfterValidator(_plain)]
Model = Annotated[str, AfterValidator(_a_model)]
Variable = Annotated[str, AfterValidator(_a_variable)]
Flag = Annotated[str, AfterValidator(_a_flag)]
Scalar = bool | int | float | str
# YAML has lists only; lax here means no more than that a list may fill a tuple.
Names = Annotated[tuple[Name, ...], Field(strict=False)]
Boundaries = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    Field(strict=False, min_length=1),
    AfterValidator(lambda given: tuple(sorted(set(given)))),  # as dumps have them: what is deployed is compared to this
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class HostSpec(_Model):
    """A machine reached over SSH, or this one (``ssh: local``)."""

    name: Name
    ssh: Plain = Field(description="user@host[:port], an alias of ~/.ssh/config, or 'local'")
    ssh_config: Plain | None = Field(None, description="an OpenSSH client file to read instead of ~/.ssh/config")
    python: RemotePath = Field(description="the interpreter that runs SGLang on the host")
    state_dir: RemotePath = Field("~/.hsops", description="where hsops keeps runs, patches and the agent")
    dumps: RemotePath = Field("/dev/shm/sglang_hs", description="where ranks write hidden states")  # noqa: S108


class HsDumpPatch(_Model):
    """The built-in capture of hidden states."""

    name: Name
    kind: Literal["hs-dump"] = "hs-dump"
    method: Literal["source", "hook"] = Field(
        "source", description="source: a stanza in SGLang's model registry; hook: --forward-hooks, no file is touched"
    )
    boundaries: Boundaries = Field(description="k = residual stream just before layer k, output of layer k-1")
    final: Literal["pre-norm", "post-norm", "both", "none"] = Field(
        "pre-norm",
        description="the state after the last layer: pre-norm, as the last slot; post-norm, as a tensor of its own",
    )


class ServerSpec(_Model):
    """How one SGLang server is launched."""

    name: Name
    host: Name
    model: Model = Field(description="a path on the host, or a hub id")
    tp: Annotated[int, Field(ge=1, le=1024)] = 1
    port: Annotated[int, Field(ge=1, le=65535)] | Literal["auto"] = 30000
    nccl: str | None = Field(None, description="an NCCL profile: pcie-p2p, pcie-p2p-phb, pcie-dram, debug")
    env: dict[Variable, str] = Field(default_factory=dict, description="added to, and stronger than, the profile")
    args: dict[Flag, Scalar | list[Scalar]] = Field(
        default_factory=dict, description="SGLang's flags without the dashes; true means the bare flag"
    )
    patches: Names = ()


class Inventory(_Model):
    """The whole file, checked, with the defaults filled in."""

    hosts: dict[Name, HostSpec] = Field(default_factory=dict)
    groups: dict[Name, Names] = Field(default_factory=dict)
    servers: dict[Name, ServerSpec] = Field(default_factory=dict)
    patches: dict[Name, HsDumpPatch] = Field(default_factory=dict)
    default: Name | None = Field(None, description="the server meant when a command names none")
