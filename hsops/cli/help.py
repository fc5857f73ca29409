"""``--help`` as people read it: a flag takes no value, so none is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

from hsops.core.errors import UsageError

COMPLETIONS = ("install_completion", "show_completion")
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")  # that Typer writes completion for


def _plain(params: list[Any]) -> list[Any]:
    """Parameters without types: ``<bool>`` after a flag would be typed, ``SERVER <str>`` says nothing."""
    for param in params:
        if isinstance(param, TyperArgument):
            param.display_type_rich = lambda *_, **__: ""  # type: ignore[method-assign]
        elif param.metavar is None and (getattr(param, "is_flag", False) or getattr(param, "count", False)):
            param.metavar = ""
    return params


class Command(TyperCommand):
    """A command of hsops."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class Group(TyperGroup):
    """hsops itself, or a command with commands of its own."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = _plain(super().get_params(ctx))
        for param in params:
            if param.name in COMPLETIONS and not isinstance(param.callback, _OfAKnownShell):
                param.callback = _OfAKnownShell(param.callback)
        return params


class _OfAKnownShell:
    """Typer's own callback, once it is sure that it knows the shell."""

    def __init__(self, act: Callable[[Any, Any, Any], Any]) -> None:
        self._act = act

    def __call__(self, ctx: Any, param: Any, value: Any) -> Any:
        shell = _shell() if value and not ctx.resilient_parsing else SHELLS[0]
        if shell not in SHELLS:
            raise UsageError(
                f"there is no completion for {shell or 'a shell that cannot be told'}",
                why=f"it works in {', '.join(SHELLS[:-1])} and {SHELLS[-1]}",
                fix=f"bash -c 'hsops {param.opts[0]}; true', or the same in another of them",
            )
        return self._act(ctx, param, value)


def _shell() -> str:
    import shellingham  # type: ignore[import-untyped]  # Typer's own, of which it takes the shell's name too

    try:
        name, _ = shellingham.detect_shell()
    except shellingham.ShellDetectionFailure:
        return ""
    return str(name)
