"""The patches of inventory.yaml: four kinds, told apart by ``kind``.

A kind says where its files come from and go; how it is planned and carried out lies in ``hsops.deploy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from hsops.core.names import Name, Plain, Variable
from hsops.core.texts import a_relative_path, a_remote_path
from hsops.core.yaml_file import ARM

KINDS = ("hs-dump", "diff", "files", "script")
SITE = "site-packages"
Boundaries = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    Field(strict=False, min_length=1),
    AfterValidator(lambda given: tuple(sorted(set(given)))),  # as dumps have them: what is deployed is compared to this
]


def _a_root(value: str) -> str:
    if value == SITE:
        return value
    if not value.startswith(("/", "~/")):
        raise ValueError(f"{value!r} is neither {SITE} nor an absolute folder on the host")
    return a_remote_path(value)


def _a_local_path(value: str) -> str:
    if not value.strip():
        raise ValueError("names no file")
    return value


Root = Annotated[str, AfterValidator(_a_root)]
LocalPath = Annotated[Plain, AfterValidator(_a_local_path)]
RelativePath = Annotated[str, AfterValidator(a_relative_path)]


class _Patch(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    name: Name


class _RootedPatch(_Patch):
    root: Root = Field(SITE, description="site-packages: the folder that holds sglang; or an absolute folder there")

    @property
    def place(self) -> str:
        """Where its files lie, in the agent's words."""
        return "site" if self.root == SITE else self.root


class HsDumpPatch(_Patch):
    """The built-in capture of hidden states."""

    kind: Literal["hs-dump"] = "hs-dump"
    method: Literal["source", "hook"] = Field(
        "source", description="source: a stanza in SGLang's model registry; hook: --forward-hooks, no file is touched"
    )
    boundaries: Boundaries = Field(description="k = residual stream just before layer k, output of layer k-1")
    final: Literal["pre-norm", "post-norm", "both", "none"] = Field(
        "pre-norm",
        description="the state after the last layer: pre-norm, as the last slot; post-norm, as a tensor of its own",
    )

    @property
    def place(self) -> str:
        """Where its files lie, in the agent's words."""
        return self.method


class DiffPatch(_RootedPatch):
    """A unified diff, applied where its lines stand exactly once."""

    kind: Literal["diff"]
    diff: LocalPath = Field(description="the file, seen from inventory.yaml")
    strip: Annotated[int, Field(ge=0, le=64)] = Field(1, description="leading parts of its paths to leave out")


class FilesPatch(_RootedPatch):
    """A file, or what is in a folder, copied."""

    kind: Literal["files"]
    from_: LocalPath = Field(alias="from", description="a file or a folder, seen from inventory.yaml")
    to: RelativePath = Field(description="the file, or the folder, that it becomes below root")


class ScriptPatch(_RootedPatch):
    """The user's own Python script, run on the host against a copy; what it did to the files it names is the patch."""

    kind: Literal["script"]
    run: LocalPath = Field(description="the script, seen from inventory.yaml")
    files: Annotated[tuple[RelativePath, ...], Field(strict=False, min_length=1)] = Field(
        description="the files below root that it may change, create or remove"
    )
    args: Annotated[tuple[Plain, ...], Field(strict=False)] = Field(
        (), description="its arguments; {root} becomes the folder that it works on"
    )
    env: dict[Variable, Plain] = Field(default_factory=dict, description="added to its environment")
    timeout: Annotated[float, Field(gt=0, le=600, strict=False)] = Field(60, description="seconds it may take")


class _UnknownPatch(BaseModel):
    """What an entry is held against whose kind there is not: the kind is the one fault of it that is worth telling."""

    kind: Literal["hs-dump", "diff", "files", "script"]


def _kind(value: Any) -> str:
    kind = value.get("kind", "hs-dump") if isinstance(value, dict) else getattr(value, "kind", "hs-dump")
    return f"{ARM}{kind}" if kind in KINDS else f"{ARM}?"


PatchSpec = HsDumpPatch | DiffPatch | FilesPatch | ScriptPatch
if TYPE_CHECKING:
    Patch = PatchSpec
else:
    Patch = Annotated[
        Annotated[HsDumpPatch, Tag(f"{ARM}hs-dump")]
        | Annotated[DiffPatch, Tag(f"{ARM}diff")]
        | Annotated[FilesPatch, Tag(f"{ARM}files")]
        | Annotated[ScriptPatch, Tag(f"{ARM}script")]
        | Annotated[_UnknownPatch, Tag(f"{ARM}?")],
        Discriminator(_kind),
    ]
