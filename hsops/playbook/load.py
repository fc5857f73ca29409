"""Reads a playbook: every fault at once, with file, line and column."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hsops.core.errors import ConfigError, Fault
from hsops.core.yaml_file import Document, read, suggest, validate
from hsops.playbook.model import STEPS, Playbook, Step

_VARIABLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True)
class Plan:
    """A playbook with its variables filled in: what will be done, in order."""

    name: str
    server: str | None
    steps: tuple[Step, ...]
    on_failure: str | None


def load(path: Path, given: Mapping[str, str]) -> Plan:
    """The plan of the playbook at ``path``.

    Args:
        path: the file.
        given: variables from the command line.

    Raises:
        ConfigError: with every fault of the file, and every variable that nobody set.
    """
    document = read(path, what="playbook", fix="name the file: hsops run playbooks/extract.yaml")
    playbook, faults = validate(document, Playbook, document.value)
    steps: list[Step] = []
    if playbook is not None:
        faults += _unknown(document, playbook, given)
        for i, raw in enumerate(playbook.steps):
            step, more = _step(document, i, raw, {**playbook.vars, **given})
            faults += more
            steps += [step] if step else []
    if faults or playbook is None:
        raise ConfigError(sorted(faults, key=lambda f: (f.line, f.column)))
    return Plan(playbook.name, playbook.server, tuple(steps), playbook.on_failure)


def _step(document: Document, i: int, raw: Any, values: Mapping[str, str]) -> tuple[Step | None, list[Fault]]:
    path: tuple[Hashable, ...] = ("steps", i)
    if isinstance(raw, str):
        raw = {raw: None}
    if not isinstance(raw, dict) or len(raw) != 1:
        return None, [document.fault(path, "expected a command's name, or one command with its options")]
    ((command, options),) = raw.items()
    kind = STEPS.get(command)
    if kind is None:
        known = ", ".join(STEPS)
        return None, [
            document.fault(
                (*path, command), f"no step {command!r}{suggest(command, list(STEPS))} ({known})", at_key=True
            )
        ]
    if not isinstance(options, dict | None):
        return None, [document.fault((*path, command), f"expected a mapping of options, got {options!r}")]
    filled, faults = {}, []
    for key, value in (options or {}).items():
        filled[key], missing = _fill(value, values)
        faults += [
            document.fault((*path, command, key), f"nobody sets {{{name}}}; add --set {name}=...") for name in missing
        ]
    step, more = validate(document, kind, filled, at=(*path, command))
    return (None, faults + more) if faults or more else (step, [])


def _fill(value: Any, values: Mapping[str, str]) -> tuple[Any, list[str]]:
    if not isinstance(value, str):
        return value, []
    missing = [name for name in _VARIABLE.findall(value) if name not in values]
    return _VARIABLE.sub(lambda m: values.get(m[1], m[0]), value), missing


def _unknown(document: Document, playbook: Playbook, given: Mapping[str, str]) -> list[Fault]:
    """A variable of the command line that no step uses is a misspelt one."""
    used = {*_VARIABLE.findall(str(playbook.steps)), *playbook.vars}
    return [
        document.fault((), f"no step uses {{{name}}}{suggest(name, sorted(used))}")
        for name in given
        if name not in used
    ]
