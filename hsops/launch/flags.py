"""SGLang's flags in a server's ``args``, held against the parser of the SGLang that is installed. Pure.

The parser itself would tell, after some seconds: it imports torch. Its declarations, read by the agent without an
import, say the same of everything but the values that functions of SGLang's own convert: those are left to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from hsops.core.inventory import Scalar

Given = Scalar | list[Scalar]
_LIKE = 0.75
_NEGATIVE = re.compile(r"-\d+$|-\d*\.\d+$")  # argparse takes these for values
_CONVERT: Mapping[str, tuple[Callable[[str], object], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of SGLang's parser, as the agent's ``args-look`` tells it.

    Args:
        names: with dashes, synonyms included.
        dest: equal for options that mean the same thing.
        nargs: values it takes: 0, 1, ..., ``?``, ``*``, ``+``; None when the code does not tell.
        type: int, float, str, or "" for a function of SGLang's own.
        choices: None when there are none, or nobody can tell; ``open``: a plugin may add to them.
        deprecated: what SGLang says of it, or ""; ``removed``: it ends the start.
    """

    names: tuple[str, ...]
    dest: str
    nargs: int | str | None = 1
    type: str = "str"
    choices: tuple[Any, ...] | None = None
    open: bool = False
    deprecated: str = ""
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Parser:
    """The options of SGLang ``version``; none when nobody could read them: then nothing is judged.

    Args:
        unread: what went wrong with reading them; "" for nothing, or a command line that is declared in no known way.
    """

    options: tuple[Option, ...] = ()
    version: str = ""
    unread: str = ""

    def named(self, flag: str) -> tuple[str, ...]:
        """The full names that argparse takes ``--flag`` for: itself, or those that it abbreviates."""
        names = dict.fromkeys(name for option in self.options for name in option.names)
        return (flag,) if flag in names else tuple(name for name in names if name.startswith(flag))

    def option(self, name: str) -> Option:
        """The one with this full name."""
        return next(option for option in self.options if name in option.names)


@dataclass(frozen=True, slots=True)
class Reading:
    """``args`` as the parser would take them.

    Args:
        faults: (name in ``args``, what is wrong with it).
        notes: what works and should be known.
        full: name in ``args`` -> the flag it means, without dashes; only those that are abbreviated.
    """

    faults: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    full: Mapping[str, str] = field(default_factory=dict)

    def flag(self, name: str) -> str:
        """What a name in ``args`` means, without dashes."""
        return self.full.get(name) or name.lstrip("-").replace("_", "-")


def parse_options(raw: Sequence[Mapping[str, Any]], version: str) -> Parser:
    """From the agent's words."""
    return Parser(
        tuple(
            Option(
                names=tuple(one["names"]),
                dest=one["dest"],
                nargs=one.get("nargs"),
                type=one.get("type", ""),
                choices=tuple(one["choices"]) if "choices" in one else None,
                open=bool(one.get("open")),
                deprecated=str(one.get("deprecated", "")),
                removed=bool(one.get("removed")),
            )
            for one in raw
        ),
        version,
    )


def read(args: Mapping[str, Given], parser: Parser) -> Reading:
    """What the parser would make of ``args`` of the inventory: ``true`` is the bare flag, ``false`` none."""
    faults, full = list[tuple[str, str]](), dict[str, str]()
    notes = [f"the flags in args are not judged: {parser.unread}"] if parser.unread else []
    taken: dict[str, str] = {}
    for name, value in args.items() if parser.options else ():
        flag = f"--{name.lstrip('-').replace('_', '-')}"
        names = parser.named(flag)
        if value is False:
            continue
        if len(names) != 1:
            faults.append((name, _ambiguous(flag, names) if names else _unknown(flag, parser)))
            continue
        option = parser.option(names[0])
        if names[0] != flag:
            full[name] = names[0].lstrip("-")
            notes.append(f"{flag} is short for {names[0]}")
        other = taken.setdefault(option.dest, name)
        wrong = f"the same flag as {other}; keep one" if other != name and args[other] != value else ""
        if wrong := wrong or _removed(option) or _count(option, value) or _words(option, value):
            faults.append((name, wrong))
        else:
            notes += _remarks(names[0], option, value, parser)
    return Reading(tuple(faults), tuple(notes), full)


def _ambiguous(flag: str, names: Sequence[str]) -> str:
    some = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
    return f"{flag} could be {some}; write one out"


def _unknown(flag: str, parser: Parser) -> str:
    known = [name for option in parser.options for name in option.names if not option.removed]
    like = get_close_matches(flag, known, n=2, cutoff=_LIKE)
    which = f"SGLang {parser.version}" if parser.version else "the installed SGLang"
    return f"{which} has no flag {flag}" + (f"; did you mean {' or '.join(like)}?" if like else "")


def _removed(option: Option) -> str:
    return f"SGLang refuses it: {option.deprecated}" if option.removed else ""


def _count(option: Option, value: Given) -> str:
    """More or fewer values than it takes."""
    given = len(value) if isinstance(value, list) else 0 if value is True else 1
    if option.nargs == 0 and given:
        return f"it takes no value, got {_shown(value)}; say true, or false to leave it out"
    if option.nargs in (1, "+") and not given:
        return "it needs a value"
    if option.nargs in (1, "?") and given > 1:
        return f"it takes one value, got {given}"
    if isinstance(option.nargs, int) and option.nargs > 1 and given != option.nargs:
        return f"it takes {option.nargs} values, got {given}"
    return ""


def _words(option: Option, value: Given) -> str:
    """The first value that cannot be."""
    return next(filter(None, (_word(option, word) for word in _listed(value))), "")


def _word(option: Option, word: str) -> str:
    if word.startswith("-") and " " not in word and len(word) > 1 and not _NEGATIVE.match(word):
        return f"{word!r} begins with a dash: it would be taken for a flag"
    if option.type in _CONVERT:
        convert, what = _CONVERT[option.type]
        try:
            convert(word)
        except ValueError:
            return f"expected {what}, got {word!r}"
    if option.choices is None or not option.type or word in map(str, option.choices):
        return ""
    like = get_close_matches(word, list(map(str, option.choices)), n=1, cutoff=_LIKE)
    if option.open and not like:
        return ""
    hint = f"; did you mean {like[0]}?" if like else ""
    return f"{word!r} is none of {', '.join(map(str, option.choices))}{hint}"


def _remarks(flag: str, option: Option, value: Given, parser: Parser) -> Iterator[str]:
    if option.deprecated:
        yield f"{flag} is deprecated in SGLang {parser.version}: {option.deprecated.strip()}"
    known = list(map(str, option.choices or ()))
    for word in _listed(value) if option.open and known else ():
        if word not in known:
            yield f"{flag} {word}: SGLang itself has {', '.join(known)}; a plugin may add more"


def _listed(value: Given) -> list[str]:
    return [] if value is True else [str(word) for word in (value if isinstance(value, list) else [value])]


def _shown(value: Given) -> str:
    return repr(" ".join(map(str, value)) if isinstance(value, list) else value)
