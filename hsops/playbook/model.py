"""A playbook: ordered steps, each one of hsops' own commands with its options."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Step(BaseModel):
    """One step. The options of each kind are those of the command of the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    command: ClassVar[str]


class Deploy(Step):
    """Apply the server's patches."""

    command = "deploy"


class Launch(Step):
    """Start the server and wait until it is healthy."""

    command = "launch"
    replace: bool = False
    timeout: Annotated[float, Field(gt=0)] | None = None
    stall_after: Annotated[float, Field(gt=0)] | None = None
    stop_on_failure: bool = False


class Extract(Step):
    """Drive the prompts through the server; with ``drain``, a local folder, fetch and evict meanwhile."""

    command = "extract"
    prompts: str
    concurrency: Annotated[int, Field(ge=1, le=1024)] | None = None
    relaunch: Annotated[int, Field(ge=0, le=100)] | None = None
    drain: str | None = None
    tokenized: str | None = None


class Fetch(Step):
    """Pull the dumps."""

    command = "fetch"
    to: str
    streams: Annotated[int, Field(ge=1, le=64)] | None = None
    evict: bool = False


class Verify(Step):
    """Check the dumps here, or with ``live`` the capture of the server."""

    command = "verify"
    dir: str | None = None
    prompts: str | None = None
    live: bool = False

    @model_validator(mode="after")
    def _one_of_them(self) -> Verify:
        if self.live == bool(self.dir) or (self.live and self.prompts):
            raise ValueError("give dir (and prompts), or live: true alone")
        return self


class Export(Step):
    """Write the data set for a trainer."""

    command = "export"
    dir: str
    to: str
    format: Literal["specforge", "speculators"]
    prompts: str | None = None
    mask: Literal["prompts", "all"] = "prompts"
    engine: str | None = None
    trunk: str | None = None
    copy_: bool = Field(False, alias="copy")
    partial: bool = False


class Stop(Step):
    """Stop the server."""

    command = "stop"


class Diagnose(Step):
    """Say how the server is."""

    command = "diagnose"


STEPS: dict[str, type[Step]] = {
    kind.command: kind for kind in (Deploy, Launch, Extract, Fetch, Verify, Export, Stop, Diagnose)
}


class Playbook(BaseModel):
    """The file. ``vars`` are defaults for ``{name}`` in the steps' options; the command line overrides them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    server: str | None = Field(None, description="the server of the inventory; without it the default one")
    vars: dict[str, str] = Field(default_factory=dict)
    steps: list[Any] = Field(min_length=1, description="a command's name, or one command with its options")
    on_failure: Literal["diagnose"] | None = None
