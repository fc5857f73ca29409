"""Options that every command takes, before or after its name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class Options:
    """The global options of one invocation."""

    inventory: str | None = None
    host: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    json: bool = False
    verbose: int = 0
    no_color: bool = False
    yes: bool = False
    accept_new: bool = False
    lock_wait: float | None = None
    reason: str = ""


def _option(*names: str, **kwargs: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Everywhere", show_default=False, **kwargs)


def _a_line(text: str) -> str:
    """It is shown on other people's terminals, in a sentence."""
    if len(text) > LONGEST_REASON or not all(char.isprintable() for char in text):
        raise typer.BadParameter(f"one line of at most {LONGEST_REASON} characters", param_hint="--reason")
    return text.strip()


_EVERYWHERE = {
    "inventory": (
        Annotated[str, _option("--inventory", "-i", metavar="FILE", help="The inventory [./inventory.yaml].")],
        "",
    ),
    "host": (Annotated[list[str], _option("--host", metavar="NAME", help="Only this host; repeatable.")], ()),
    "group": (
        Annotated[list[str], _option("--group", metavar="NAME", help="Only this group's hosts; repeatable.")],
        (),
    ),
    "json": (Annotated[bool, _option("--json", help="One JSON envelope; JSON lines while it works.")], False),
    "verbose": (Annotated[int, _option("--verbose", "-v", count=True, help="Say more.")], 0),
    "no_color": (Annotated[bool, _option("--no-color", help="No colour, even on a terminal.")], False),
    "yes": (Annotated[bool, _option("--yes", "-y", help="Do not ask.")], False),
    "accept_new": (Annotated[bool, _option("--accept-new", help="Trust host keys seen for the first time.")], False),
    "lock_wait": (
        Annotated[
            float | None, _option("--lock-wait", metavar="SECONDS", min=0, help="Longest wait for a host's lock [10].")
        ],
        None,
    ),
    "reason": (
        Annotated[
            str,
            _option(
                "--reason",
                metavar="TEXT",
                callback=_a_line,
                help="Why: for those who wait for the lock, and the audit.",
            ),
        ],
        "",
    ),
}


def _said(value: Any) -> bool:
    """The option was given here; 0 seconds count, 0 times ``-v`` do not."""
    return isinstance(value, float) or bool(value)


def everywhere(body: Callable[..., Any]) -> Callable[..., Any]:
    """A command's body that also takes the global options and leaves them, merged, in the context's root object."""
    signature = inspect.signature(body, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in _EVERYWHERE.items()
    ]

    @functools.wraps(body)
    def command(ctx: typer.Context, **params: Any) -> Any:
        root = ctx.find_root()
        held = root.obj if isinstance(root.obj, Options) else Options()
        given = {f.name: params.pop(f.name) for f in fields(Options)}
        values = {name: value if _said(value) else getattr(held, name) for name, value in given.items()}
        root.obj = Options(**{**values, "host": tuple(values["host"]), "group": tuple(values["group"])})
        return body(ctx, **params)

    parameters = [*signature.parameters.values(), *added]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command
