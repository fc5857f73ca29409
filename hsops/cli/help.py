"""``--help`` as people read it: a flag takes no value, so none is shown."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup


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
        return _plain(super().get_params(ctx))
