"""What is known of a verdict, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hsops.diagnose.knowledge import Knowledge
from hsops.render.diagnose import row, wrapped

_STATES = {"OK": "the server works", "WAIT": "it is on its way: wait", "HUNG": "it will not go on by itself",
           "DOWN": "it is down, or does not serve"}  # fmt: skip


def lines(known: Knowledge) -> Iterator[str]:
    """One class."""
    yield f"{known.name}   family {known.family}"
    yield from wrapped("  ", f"{known.meaning}. {known.word}: {_STATES[known.word]}.")
    yield from row("try", known.remedy)
    yield from row("confirm", known.confirm)
    for found in known.signatures:
        words = found.pattern.pattern.replace("|", " | ")
        yield from row("log", f"{words}   ({found.source}{f'; SGLang {found.versions}' if found.versions else ''})")
        if found.also:
            yield from row("", f"where the log also says {found.also}")
        if found.stage:
            yield from row("", f"in the stage {found.stage}")
        if found.likes:
            yield from row("", f"the same words: {', '.join(found.likes)}")
    if not known.signatures:
        yield from row("log", "no line says it: processes, stacks, system calls, GPUs and the port do")


def listing(families: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """All classes."""
    for family, classes in families.items():
        yield family
        for name, meaning in classes.items():
            yield f"  {name:<36} {meaning}"
