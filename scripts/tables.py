"""Tables of the code inside pages that people wrote: ``make docs`` fills what stands between two marks of a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from hsops.core import errors
from hsops.core.log_errors import STACK, TROUBLES
from hsops.core.milestone_table import MILESTONES, Milestone, Text
from hsops.diagnose.taxonomy import FAMILIES, MOVING
from hsops.payload.hsops_hs_dump.rules import RULES

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
_BEGIN, _END = "<!-- {}: make docs -->\n\n", "\n<!-- end of {} -->"
EXITS = {  # what is no class of an error, or means more than its class; and what to do
    0: ("done, or there was nothing to do", ""),
    1: (
        "failed; `doctor`: a blocker; `status`: none of several hosts can be asked; `diagnose`: it could not tell; "
        "`verify`: a fault, or with `--live` a failed check (a skipped one is 0)",
        "the message says why and what to type next",
    ),
    2: ("the command line cannot be meant", "see `--help`"),
    3: ("partly done; what is done is kept. `status`: some hosts cannot be asked", "run the same command again"),
    4: ("the inventory, playbook or prompts file has faults", "each is listed as `file:line:column`"),
    5: ("the host cannot be reached", "network, host key, login"),
    6: (
        "somebody else changes the host, or took the lock away meanwhile; the message says who",
        "`--lock-wait`, `hsops unlock` ([how](../how-to/change-a-host.md#one-at-a-time))",
    ),
    7: (
        "the server died, hangs, or did not become healthy; `stop`: a process or its GPU memory is still there; "
        "`diagnose`: it is dead or hangs",
        "`hsops diagnose`",
    ),
    130: ("interrupted by Ctrl-C", "long things on the host go on; `hsops status`"),
}


def milestones() -> str:
    """docs/reference/milestones.md: what is read in a log, and what of it is trouble."""
    steps = _table(
        ("stage", "milestone", "who", "", "text (regular expression)", "SGLang", ""),
        (row for step in MILESTONES for row in _step(step)),
    )
    troubles = _table(
        ("id", "role", "text (regular expression)", "seen in"),
        ((f"`{t.id}`", t.role, _code(t.pattern.pattern), t.source) for t in (*TROUBLES, STACK)),
    )
    return _filled("milestones.md", milestones=steps, troubles=troubles)


def verdicts() -> str:
    """docs/reference/verdicts.md: every class, by family."""
    text = ""
    for family, names in FAMILIES.items():
        rows = ((f"`{name}`", means, "moves" if name in MOVING else "") for name, means in names.items())
        text += f"\n## {family}\n\n{_table(('class', 'means', ''), rows)}"
    return _filled("verdicts.md", classes=text.removeprefix("\n"))


def exit_codes() -> str:
    """docs/reference/exit-codes.md: the codes that errors carry, with their types; 0 and 130.

    Raises:
        KeyError: an error carries a code that ``EXITS`` says nothing of, or nothing carries one that it has.
    """
    kinds = defaultdict[int, list[str]](list, {0: [], 130: []})
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.HsopsError):
            kinds[kind.exit_code].append(f"`{kind.__name__}`")
    if idle := EXITS.keys() - kinds.keys():
        raise KeyError(f"no error has exit code {idle}")
    rows = ((str(code), EXITS[code][0], EXITS[code][1], ", ".join(sorted(kinds[code]))) for code in sorted(kinds))
    return _filled("exit-codes.md", codes=_table(("code", "means", "what to do", "types of errors"), rows))


def hs_dump() -> str:
    """docs/reference/hs-dump.md: what a server must be launched with."""
    rows = (
        (
            f"`{rule.argument}`",
            _span(rule.since, rule.until),
            " or ".join(f"`{value}`" for value in rule.fine),
            rule.why,
            rule.source,
        )
        for rule in RULES
    )
    return _filled("hs-dump.md", rules=_table(("argument", "releases", "fine", "otherwise", "read in"), rows))


def _step(step: Milestone) -> Iterator[tuple[str, ...]]:
    """A row for each of its wordings; the first says what it is."""
    marks = ", ".join(word for word, holds in (("ends", step.ends), ("optional", step.optional)) if holds)
    first = (step.stage, f"`{step.id}`", step.scope, marks)
    for text in step.texts:
        yield (*first, _code(text.pattern), _seen(text), step.note if first[0] else "")
        first = ("", "", "", "")


def _seen(text: Text) -> str:
    return _span(text.since, text.until) if text.since else f"to {text.until}" if text.until else "all"


def _span(since: str, until: str) -> str:
    return f"{since} to {until}" if until else f"{since} on"


def _code(pattern: str) -> str:
    return "`" + pattern.replace("|", "\\|") + "`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |".replace("|  |", "| |"), "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _filled(page: str, **tables: str) -> str:
    """The page with its tables as they are now.

    Raises:
        ValueError: a mark is not in the page.
    """
    text = (FOLDER / page).read_text(encoding="utf-8")
    for name, table in tables.items():
        before, begin, rest = text.partition(_BEGIN.format(name))
        _, end, after = rest.partition(_END.format(name))
        if not (begin and end):
            raise ValueError(f"docs/reference/{page} has no marks of {name}")
        text = before + begin + table + end + after
    return text
