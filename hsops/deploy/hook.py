"""``method: hook``: no file of SGLang is touched; the payload lies in a folder of hsops' own and is named at launch."""

from __future__ import annotations

from hsops.core.capturable import no_hooks
from hsops.core.errors import ForeignError
from hsops.core.versions import within
from hsops.deploy.facts import Facts
from hsops.payload.hsops_hs_dump.strategy import LAST

PLACE = "hook"


def check(facts: Facts) -> list[str]:
    """Warnings about the installed SGLang.

    Raises:
        UnsupportedError: its command line has no ``--forward-hooks``.
    """
    if not facts.hooks:
        raise no_hooks(facts.version)
    if not within(facts.version, until=LAST):
        return [f"SGLang {facts.version or '(no version)'} was not tried; each rank says at its start what it finds"]
    return []


def check_other(other: Facts, patch: str, place: str) -> None:
    """One method at a time: two would answer for the same dumps.

    Args:
        other: the facts of the other place; place: the one that is wanted.

    Raises:
        ForeignError: the patch is applied there.
    """
    if where := elsewhere(other, place):
        raise ForeignError(
            f"{patch} is applied in {where}",
            why="the inventory wants the other method now, and only one may be there",
            fix="hsops deploy --revert takes it out; then hsops deploy again",
        )


def elsewhere(other: Facts, place: str) -> str:
    """Where the patch is applied by the method that is not wanted; "" when it is not. Arguments: as ``check_other``."""
    if other.recorded.state == "absent":
        return ""
    return "SGLang's files (method: source)" if place == PLACE else "hsops' own folder (method: hook)"
